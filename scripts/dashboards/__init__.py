"""The Grafana dashboards that come with `flatout export`, made from short lists of panels."""

from scripts.dashboards.fleet import fleet_dashboard
from scripts.dashboards.job import job_dashboard
from scripts.dashboards.node import node_dashboard

DASHBOARDS = {"job": job_dashboard, "node": node_dashboard, "fleet": fleet_dashboard}

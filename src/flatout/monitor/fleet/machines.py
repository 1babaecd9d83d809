"""Names for machines: what an exporter calls its host, or where Prometheus finds it."""

from collections.abc import Iterable, Mapping

from flatout.monitor.fleet.answers import Row


def machine_names(instances: Iterable[str], nodes: Iterable[Row], dcgm: Iterable[Row]) -> dict[str, str]:
    """A name for each instance. Exporters on one machine share it; machines that merely share one do not."""
    told = {row.label("instance"): row.label("Hostname") for row in dcgm if row.label("Hostname")}
    told |= {row.label("instance"): row.label("exported_host", "host") for row in nodes}
    wanted = {instance: told.get(instance) or host_of(instance) or "(no name)" for instance in instances}
    hosts: dict[str, set[str]] = {}
    for instance, name in wanted.items():
        hosts.setdefault(name, set()).add(host_of(instance))
    return {
        instance: name if len(hosts[name]) == 1 else f"{name} ({instance})"
        for instance, name in wanted.items()
    }


def host_of(instance: str) -> str:
    """An instance without its port: `node-1:19838`, `[::1]:19838`."""
    if instance.startswith("["):
        return instance[1:].partition("]")[0]
    host, colon, port = instance.rpartition(":")
    return host if colon and port.isdigit() and ":" not in host else instance


def instances_of(names: Mapping[str, str], machine: str) -> tuple[str, ...]:
    """Everything by which Prometheus knows a machine."""
    return tuple(sorted(instance for instance, name in names.items() if name == machine))

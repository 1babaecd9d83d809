#!/bin/sh
# Unpacks Debian's prometheus (and promtool) into a folder; says so and succeeds where that is not possible.
target=$1
mkdir -p "$target" && cd "$target" || exit 0
fetch() { apt-get download prometheus > apt.log 2>&1; }
if command -v apt-get dpkg-deb > /dev/null && { fetch || { [ "$(id -u)" = 0 ] && apt-get update > /dev/null 2>&1 && fetch; }; }; then
    for package in prometheus_*.deb; do dpkg-deb -x "$package" . ; done
    rm -f prometheus_*.deb
else
    echo "no Prometheus here (apt-get download prometheus): its tests will be skipped"
fi
exit 0

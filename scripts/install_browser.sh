#!/usr/bin/env bash
# Install Debian's Chromium and its driver, which the tests of Airflow's pages need; without them those tests are skipped.
#
# Never asks for a password, and never fails: who may not install packages here still runs all other tests.
set -euo pipefail

log() { printf '\033[1m==>\033[0m %s\n' "$*"; }

command -v chromium >/dev/null && command -v chromedriver >/dev/null && exit 0
packages=(chromium chromium-driver)
become=()
if [ "$(id -u)" -ne 0 ]; then
    become=(sudo -n)
    sudo -n true 2>/dev/null || {
        log "No Chromium here; the tests of Airflow's pages will be skipped. As root: apt-get install ${packages[*]}"
        exit 0
    }
fi
command -v apt-get >/dev/null || {
    log "No Chromium and no apt-get here; the tests of Airflow's pages will be skipped. Install chromium and chromedriver"
    exit 0
}
log "Installing ${packages[*]} with apt-get, for the tests of Airflow's pages"
install=("${become[@]}" env DEBIAN_FRONTEND=noninteractive apt-get)
if ! { "${install[@]}" update -qq && "${install[@]}" install -y -qq --no-install-recommends "${packages[@]}" >/dev/null; }; then
    log "apt-get could not install ${packages[*]}; the tests of Airflow's pages will be skipped"
fi

# Sets `mirrors` and writes $work/apt.conf, for mmdebstrap.

# Where this machine gets its own packages, with how it gets there (proxies, for example). On another distribution than
# Debian, mmdebstrap knows a mirror.
mirrors=()
. /etc/os-release
if [ "$ID" = debian ]; then
    mapfile -t mirrors < <(apt-get indextargets --format '$(RELEASE) $(REPO_URI)' 'Identifier: Packages' |
        sed -n "s/^$VERSION_CODENAME //p" | sort -u | head -1)
fi
apt-config dump | grep -E '^Acquire::(http|https|ftp|Check-)' >"$work/apt.conf" || true
echo 'Acquire::Retries "3";' >>"$work/apt.conf"

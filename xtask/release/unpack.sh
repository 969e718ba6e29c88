# Debian packages of any architecture, unpacked and not installed. Sourced; sets APT_CONFIG, and needs $work and $architecture.

# The same mirrors as those of this machine.
. /etc/os-release
[ "$ID" = debian ] || { echo "packages are fetched on Debian only, and this is $PRETTY_NAME" >&2 && exit 1; }
apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Identifier: Packages' | sort -u |
    grep -E " $VERSION_CODENAME(-security|-updates)? " |
    sed 's|^|deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] |' >"$work/sources.list"
mkdir -p "$work/lists/partial" "$work/cache/archives/partial"
: >"$work/status"
cat >"$work/apt.conf" <<CONF
Dir::Etc::sourcelist "$work/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::State::lists "$work/lists";
Dir::State::status "$work/status";
Dir::Cache "$work/cache";
APT::Architectures { "$(dpkg --print-architecture)"; "$architecture"; };
APT::Sandbox::User "root";
Acquire::Retries "3";
CONF
export APT_CONFIG=$work/apt.conf
apt-get -qq update

# depends PACKAGE PATTERN: the package of that name which it depends on.
depends() {
    apt-cache depends "$1" | sed -n "s/^ *Depends: \($2\)\$/\1/p" | head -1
}

# unpack FOLDER PACKAGE...
unpack() {
    local folder=$1 package
    shift
    mkdir -p "$work/packages" "$folder"
    (cd "$work/packages" && apt-get -qq download "$@")
    for package in "$work"/packages/*.deb; do
        dpkg-deb --extract "$package" "$folder"
    done
}

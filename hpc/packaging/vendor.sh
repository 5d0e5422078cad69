#!/usr/bin/env bash
# make vendor: an archive that builds where there is no network, in target/umbra-VERSION-vendored.tar.gz: the
# committed sources, every crate that they need (160 MB unpacked), and the settings by which cargo finds them.
#
#     hpc/packaging/vendor.sh [ARCHIVE]
#
# There, with the tools of hpc/setup.sh:
#     tar xf umbra-VERSION-vendored.tar.gz && cd umbra-VERSION && make build
set -euo pipefail
cd "$(dirname "$0")/../.."

git=$(git describe --always --dirty) || { echo "vendor: not a checkout of git" >&2; exit 1; }
case $git in
    *-dirty) echo "vendor: there are changes that are not committed; the archive is without them" >&2 ;;
esac
version=$(sed -n '/^\[workspace.package\]/,/^\[/ s/^version = "\(.*\)"/\1/p' Cargo.toml)
archive=$(realpath "${1:-${CARGO_TARGET_DIR:-target}/umbra-$version-vendored.tar.gz}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
folder=$work/umbra-$version
mkdir -p "$folder/.cargo"
git archive HEAD | tar x -C "$folder"
cd "$folder"
# cargo prints the settings that the vendored crates need.
cargo vendor --locked vendor >.cargo/config.toml 2>"$work/log" ||
    { cat "$work/log" >&2; echo "vendor: cargo could not fetch every crate of Cargo.lock" >&2; exit 1; }
cat >>.cargo/config.toml <<END

# The sources are no checkout any more: what umbra --version and every record name.
[env]
UMBRA_GIT = "${git%-dirty}"
END
tar cz -C "$work" -f "$archive" "umbra-$version"
echo "vendor: $archive, $(($(stat -c %s "$archive") / 1000000)) MB, of $git"

#!/usr/bin/env bash
# Puts umbra where others can use it, and takes it away again.
#
#     hpc/install.sh                    PREFIX=/usr/local; a release build first
#     hpc/install.sh --uninstall        the files that were installed below PREFIX, and folders that are then empty
#
#     PREFIX=/opt/umbra    where it will be used; it may be moved afterwards: nothing that is installed names it
#     DESTDIR=/tmp/image   installs below DESTDIR/PREFIX, for packagers
#     UMBRA=path           this program, instead of a release build
#
# bin/umbra; share/umbra: job scripts, job files and env.sh; share/doc/umbra; share/modulefiles/umbra/VERSION; manual
# pages and completions, where the program can write them. The MPI and HDF5 libraries are found as they were when
# it was built: where modules bring them, the modulefile's `prereq` line is yours to fill in.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() {
    echo "install: $2" >&2
    exit "$1"
}

prefix=${PREFIX:-/usr/local}
case $prefix in
    /*) prefix=${prefix%/} ;;
    *) fail 2 "PREFIX=$prefix is no absolute path" ;;
esac
root=${DESTDIR:-}$prefix
list=share/umbra/installed

uninstall() {
    [ -e "$root/$list" ] || fail 1 "nothing to take away: $root/$list, the list of what was installed, is not there"
    local file folder
    while read -r file; do
        rm -f "$root/$file"
    done <"$root/$list"
    # Folders from the inside out; those that others use stay.
    while read -r folder; do
        rmdir "$root/$folder" 2>/dev/null || true
    done < <(while read -r file; do
        while file=$(dirname "$file") && [ "$file" != . ]; do echo "$file"; done
    done <<<"$files" | sort -ru)
    echo "uninstalled from $root"
}

case ${1:-} in
    '') ;;
    --uninstall)
        files=$(cat "$root/$list" 2>/dev/null || true)
        uninstall
        exit 0
        ;;
    *) fail 2 "'$1' is not --uninstall" ;;
esac

if [ -z "${UMBRA:-}" ]; then
    hpc/setup.sh --quiet
    . hpc/env.sh
    cargo build --release -p umbra-mpi --bin umbra
    UMBRA=${CARGO_TARGET_DIR:-target}/release/umbra
fi
version=$("$UMBRA" -V) || fail 1 "$UMBRA does not start"
version=$(cut -d' ' -f2 <<<"$version")

# Everybody is to use it, however private the files of whoever installs it are.
umask 022
mkdir -p "$root" || fail 1 "cannot make $root: choose another PREFIX, or ask for the rights"
# Collected first, then copied: nothing is half there when something is missing.
image=$(mktemp -d)
trap 'rm -rf "$image"' EXIT
put() { install -D -m "$1" "$2" "$image/$3"; }
put 755 "$UMBRA" bin/umbra
put 644 hpc/env.sh share/umbra/env.sh
for file in hpc/jobs/*; do put 644 "$file" "share/umbra/jobs/${file##*/}"; done
while read -r file; do put 644 "$file" "share/doc/umbra/$file"; done < <(find docs -type f)
for file in README.md CHANGELOG.md LICENSE-MIT LICENSE-APACHE; do put 644 $file share/doc/umbra/$file; done

# What the program writes of itself.
if "$UMBRA" reference --help &>/dev/null; then
    "$UMBRA" reference man --output "$image/share/man/man1"
    mkdir -p "$image"/share/{bash-completion/completions,zsh/site-functions,fish/vendor_completions.d}
    "$UMBRA" reference completions bash >"$image/share/bash-completion/completions/umbra"
    "$UMBRA" reference completions zsh >"$image/share/zsh/site-functions/_umbra"
    "$UMBRA" reference completions fish >"$image/share/fish/vendor_completions.d/umbra.fish"
fi

mpi=$("$UMBRA" --version | sed -n 's/^MPI *//p')
case $mpi in
    MPICH*) plugin=pmi2 ;;
    *) plugin=pmix ;;
esac
mkdir -p "$image/share/modulefiles/umbra"
sed -e "s|@VERSION@|$version|; s|@MPI@|${mpi:-an MPI}|; s|@PLUGIN@|$plugin|" hpc/packaging/modulefile.tcl \
    >"$image/share/modulefiles/umbra/$version"

mkdir -p "$image/share/umbra"
# With what an earlier version left, so that it goes with this one.
files=$(cd "$image" && find . -type f -printf '%P\n' && echo $list && cat "$root/$list" 2>/dev/null || true)
sort -u <<<"$files" >"$image/$list"
# A program that runs keeps the file that it was started from.
cp -R --no-preserve=ownership --remove-destination "$image"/* "$root"/
echo "installed umbra $version in $root"
echo "    module use $prefix/share/modulefiles && module load umbra    or    export PATH=$prefix/bin:\$PATH"

#!/usr/bin/env bash
# make test-aarch64: the core's tests on aarch64, with its NEON kernels, under an emulator.
#
#     hpc/aarch64.sh [FILTER]    the tests whose names contain FILTER; all without one
#
# Compiler, standard library, linker and emulator are Debian's packages, unpacked in target/aarch64 (0.8 GB): nothing
# is installed, no rights are needed, and where they are there, no network. A standard library belongs to one compiler,
# so the compiler is Debian's too (rustc-web, the current one in a stable release). On an aarch64 machine the tests run
# as they are. Exits 5 where the packages can't be had.
set -euo pipefail
cd "$(dirname "$0")/.."

tests=(-p umbra-core --lib -- ${1:+"$1"})
[ "$(uname -m)" != aarch64 ] || exec cargo test "${tests[@]}"

mkdir -p "${CARGO_TARGET_DIR:-target}/aarch64"
folder=$(realpath "${CARGO_TARGET_DIR:-target}/aarch64")
root=$folder/root

refuse() {
    echo "test-aarch64: $1" >&2
    exit 5
}

# Debian's packages with lists of our own: those of the machine know its own architecture alone.
unpack() {
    local log=$folder/install.log host compiler
    command -v apt-get dpkg >/dev/null || refuse "this system has no apt-get to fetch Debian's packages with"
    host=$(dpkg --print-architecture)
    rm -rf "$folder/apt" "$root"
    mkdir -p "$folder"/apt/{lists,cache/archives}/partial "$folder/apt/packages" "$root"
    printf '%s\n' "Dir::State::lists \"$folder/apt/lists\";" "Dir::Cache \"$folder/apt/cache\";" \
        "APT::Architectures { \"$host\"; \"arm64\"; };" 'APT::Sandbox::User "root";' >"$folder/apt/conf"
    export APT_CONFIG=$folder/apt/conf
    apt-get update &>"$log" || refuse "the lists of Debian's packages can't be had; what apt-get said is in $log"
    # The compiler is a program, a library, and the LLVM that belongs to it.
    compiler=$(apt-cache depends --recurse --important "rustc-web:$host" | grep -oE '^(libstd-rust-web|libllvm)[-.0-9a-z]+' |
        sort -u) || refuse "the package rustc-web is not to be had here (Debian 12 has it)"
    echo "test-aarch64: unpacking rustc-web, a cross linker and qemu-user-static in $folder"
    (cd "$folder/apt/packages" && apt-get download rustc-web $compiler libstd-rust-web-dev:arm64 qemu-user-static \
        gcc-12-aarch64-linux-gnu binutils-aarch64-linux-gnu libgcc-12-dev-arm64-cross libc6-dev-arm64-cross) \
        &>"$log" || refuse "packages can't be had; what apt-get said is in $log"
    for package in "$folder"/apt/packages/*.deb; do
        dpkg -x "$package" "$root"
    done
    rm -r "$folder/apt"
    # Both look for what belongs to them in the system's folders.
    printf '#!/bin/sh\nLD_LIBRARY_PATH=%s exec %s "$@"\n' \
        "$root/usr/lib/$(uname -m)-linux-gnu" "$root/usr/bin/rustc" >"$folder/rustc"
    printf '#!/bin/sh\nLD_LIBRARY_PATH=%s exec %s "$@"\n' "$root/usr/lib/$(uname -m)-linux-gnu" \
        "$root/usr/bin/aarch64-linux-gnu-gcc-12 -B$root/usr/bin/aarch64-linux-gnu- --sysroot=$root" >"$folder/cc"
    chmod +x "$folder/rustc" "$folder/cc"
}

there() { "$folder/rustc" --version && "$folder/cc" --version && "$root/usr/bin/qemu-aarch64-static" --version; }

if ! there &>/dev/null; then
    unpack
    there >"$folder/install.log" 2>&1 || refuse "what was unpacked does not run here; what it said is in $folder/install.log"
fi
wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
got=$("$folder/rustc" --version | cut -d' ' -f2)
[ "$(printf '%s\n%s\n' "$wanted" "$got" | sort -V | head -n1)" = "$wanted" ] ||
    refuse "Debian's compiler is $got; umbra needs $wanted or newer"
echo "test-aarch64: $("$folder/rustc" --version), $("$root/usr/bin/qemu-aarch64-static" --version | head -n1)"

export RUSTC=$folder/rustc CARGO_TARGET_DIR=$folder/target
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=$folder/cc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER=$root/usr/bin/qemu-aarch64-static
# Linked statically: the emulator then needs no libraries of that architecture.
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUSTFLAGS=-Ctarget-feature=+crt-static
cargo test --target aarch64-unknown-linux-gnu "${tests[@]}"

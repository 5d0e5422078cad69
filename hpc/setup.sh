#!/usr/bin/env bash
# What umbra needs to build and run: looks, installs what is missing where it may, says what it found.
#
#     hpc/setup.sh            look, install, report
#     hpc/setup.sh --quiet    the same, silent when nothing is missing
#     hpc/setup.sh slurm      and what a Slurm on this machine is made of; mpich: MPICH, beside another MPI; modules:
#                             Environment Modules
#
# Changes nothing when nothing is missing, and then needs no network. Installs with apt, as root or
# with sudo; elsewhere it names what is missing and the module that usually brings it, and exits 5.
set -euo pipefail
cd "$(dirname "$0")/.."
. hpc/env.sh

quiet= slurm= mpich= modules=
for word in "$@"; do
    case $word in
        --quiet) quiet=1 ;;
        slurm) slurm=1 ;;
        mpich) mpich=1 ;;
        modules) modules=1 ;;
        *) echo "setup: '$word' is neither --quiet, slurm, mpich nor modules" >&2 && exit 2 ;;
    esac
done

# --- what there must be: description | Debian packages | module | check --------------------------
needs=(
    'C compiler and linker (cc)|gcc libc6-dev|gcc|has_compiler'
    'make|make|make|command -v make'
    'pkg-config|pkg-config|pkgconf|command -v pkg-config'
    'MPI compiler wrapper (mpicc)|libopenmpi-dev|openmpi|command -v mpicc'
    'MPI launcher (mpirun)|openmpi-bin|openmpi|has_launcher'
    'clang, for the MPI bindings|clang|llvm|command -v clang'
    'libclang, for the MPI bindings|libclang-dev|llvm|has_libclang'
    'HDF5 headers and library|libhdf5-dev|hdf5|hdf5_version'
    'xz, for packed data|xz-utils|xz|command -v xz'
)
[ -z "$slurm" ] || needs+=(
    'Slurm|munge slurmctld slurmd slurm-client slurm-wlm-basic-plugins|slurm|has_slurm'
    'python3|python3|python|command -v python3'
)
[ -z "$mpich" ] || needs+=('MPICH|mpich libmpich-dev|mpich|has_mpich')

[ -z "$modules" ] || needs+=('Environment Modules, or Lmod|environment-modules|environment-modules|has_modules')

has_compiler() { command -v cc && echo '#include <stdio.h>' | cc -E -x c - -o /dev/null; }

# Inside a Slurm allocation srun launches, and many sites hide mpirun.
has_launcher() { command -v mpirun || command -v srun; }

# On Debian daemons are where only root looks for programs.
has_slurm() {
    local program
    for program in munged slurmctld slurmd sinfo squeue scancel sbatch srun; do
        PATH=$PATH:/usr/sbin command -v "$program" || return 1
    done
}

# Debian has it beside Open MPI, by these names.
has_mpich() { command -v "${MPICC:-mpicc.mpich}" && command -v "${MPIRUN:-mpirun.mpich}"; }

has_modules() { [ -e "${MODULESHOME:-/usr/share/modules}/init/bash" ] || [ -e /usr/share/lmod/lmod/init/bash ]; }

has_libclang() {
    local prefix file
    prefix=$(llvm-config --prefix 2>/dev/null || true)
    for file in ${LIBCLANG_PATH:+"$LIBCLANG_PATH"/libclang*.so*} ${prefix:+"$prefix"/lib/libclang*.so*} \
        /usr/lib/llvm-*/lib/libclang*.so* /usr/lib*/libclang*.so* /usr/lib/*-linux-gnu/libclang*.so* \
        /usr/local/lib/libclang*.so*; do
        case "$file" in *libclang-cpp*) continue ;; esac
        [ -e "$file" ] && return 0
    done
    return 1
}

# Prints the version in the header that the build will meet.
hdf5_version() {
    local flags
    flags="${HDF5_DIR:+-I$HDF5_DIR/include}"
    echo '#include <hdf5.h>' | cc ${flags:-$(pkg-config --cflags hdf5 2>/dev/null)} -E -dM -x c - 2>/dev/null |
        sed -n 's/^#define H5_VERS_INFO "HDF5 library version: \(.*\)"$/\1/p' | grep .
}

look() {
    missing=() packages=() modules=()
    local line what package module check
    for line in "${needs[@]}"; do
        IFS='|' read -r what package module check <<<"$line"
        if ! $check >/dev/null 2>&1; then
            missing+=("$what") packages+=($package) modules+=("$module")
        fi
    done
}

# --- Rust ----------------------------------------------------------------------------------------
rust_wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
check_rust() {
    local tool version
    for tool in cargo rustc; do
        if ! version=$($tool --version 2>/dev/null); then
            echo "setup: $tool is missing; umbra needs Rust $rust_wanted or newer." >&2
            echo "       Install it in your home, no rights needed: https://rustup.rs, or 'module load rust'." >&2
            exit 5
        fi
        version=$(cut -d' ' -f2 <<<"$version")
        if [ "$(printf '%s\n%s\n' "$rust_wanted" "$version" | sort -V | head -n1)" != "$rust_wanted" ]; then
            echo "setup: $tool is $version; umbra needs $rust_wanted or newer: 'rustup update stable'." >&2
            exit 5
        fi
    done
}

# --- installing ----------------------------------------------------------------------------------
refuse() {
    {
        echo "setup: missing, and $1:"
        printf '         %s\n' "${missing[@]}"
        echo "       On a cluster:      module load $(printf '%s\n' "${modules[@]}" | sort -u | tr '\n' ' ')"
        echo "       On Debian, Ubuntu: sudo apt-get install ${packages[*]}"
        echo "       Then run this again."
    } >&2
    exit 5
}

install_missing() {
    local sudo=()
    command -v apt-get >/dev/null || refuse "this system has no apt-get to install it with"
    if [ "$(id -u)" != 0 ]; then
        # Ask for a password only where somebody can answer.
        if ! { command -v sudo && { sudo -n true || [ -t 0 ]; }; } >/dev/null 2>&1; then
            refuse "you are neither root nor allowed sudo"
        fi
        sudo=(sudo)
    fi
    echo "setup: installing ${packages[*]}"
    # A stale package list may still do; the install says so if not.
    "${sudo[@]}" apt-get update -qq || echo "setup: apt-get update failed; trying with the lists there are" >&2
    "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get -o DPkg::Lock::Timeout=300 install -y -qq --no-install-recommends "${packages[@]}" >/dev/null ||
        refuse "apt-get could not install it"
}

if [ -n "${HDF5_DIR:-}" ] && [ ! -e "$HDF5_DIR/include/hdf5.h" ]; then
    echo "setup: HDF5_DIR=$HDF5_DIR has no include/hdf5.h; unset it, or name the prefix of an HDF5." >&2
    exit 5
fi
look
if [ ${#missing[@]} != 0 ]; then
    install_missing
    # What was installed may change which HDF5 is meant.
    . hpc/env.sh
    look
    [ ${#missing[@]} = 0 ] || refuse "still so after installing"
fi
check_rust

# --- report --------------------------------------------------------------------------------------
if [ -z "$quiet" ]; then
    launcher=$(mpirun --version 2>/dev/null || srun --version 2>/dev/null || true)
    echo "setup: $(rustc --version), $(cc --version | head -n1)"
    echo "setup: MPI $(head -n1 <<<"$launcher"), $(command -v mpicc)"
    echo "setup: HDF5 $(hdf5_version)${HDF5_DIR:+, HDF5_DIR=$HDF5_DIR}, $(clang --version | head -n1)"
    echo "setup: $(nproc) cores, nothing missing"
fi

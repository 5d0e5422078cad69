# Environment of builds and runs. Sourced, by sh or bash, from make targets and job scripts:
#     . hpc/env.sh
# Everything here is a default: what the caller has set already wins.

# mpirun refuses to run as root (containers, CI) unless told twice.
if [ "$(id -u)" = 0 ]; then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi
# Waiting ranks give up the core. Measured on 4 ranks and 2 cores: a 4-byte all-reduce takes 3 us so,
# 5 ms otherwise; with a core per rank it costs nothing that shows.
export OMPI_MCA_mpi_yield_when_idle="${OMPI_MCA_mpi_yield_when_idle:-1}"
# More ranks than cores is a warning of umbra's, not an error of mpirun's (Open MPI 4, then 5).
export OMPI_MCA_rmaps_base_oversubscribe="${OMPI_MCA_rmaps_base_oversubscribe:-1}"
export PRTE_MCA_rmaps_default_mapping_policy="${PRTE_MCA_rmaps_default_mapping_policy:-:oversubscribe}"
# mpirun ties one or two ranks to a core each, and every thread of theirs with them. Under Slurm the
# binding is srun's, which reads neither of these.
export OMPI_MCA_hwloc_base_binding_policy="${OMPI_MCA_hwloc_base_binding_policy:-none}"
export PRTE_MCA_hwloc_default_binding_policy="${PRTE_MCA_hwloc_default_binding_policy:-none}"
# Containers forbid reading another process's memory: copy through shared memory instead.
export OMPI_MCA_btl_vader_single_copy_mechanism="${OMPI_MCA_btl_vader_single_copy_mechanism:-none}"
# Lustre and NFS are often mounted without file locks; umbra's files have one writer.
export HDF5_USE_FILE_LOCKING="${HDF5_USE_FILE_LOCKING:-BEST_EFFORT}"
# Large allocations ask for huge pages (glibc 2.35 and later), as umbra's tables do by themselves.
export GLIBC_TUNABLES="${GLIBC_TUNABLES:-glibc.malloc.hugetlb=1}"
# In a Slurm step, pools of threads follow the cores of the step.
if [ -n "${SLURM_CPUS_PER_TASK:-}" ]; then
    export RAYON_NUM_THREADS="${RAYON_NUM_THREADS:-$SLURM_CPUS_PER_TASK}"
fi

# The serial HDF5. Modules name their prefix in one of these; Debian has it beside the parallel one,
# which takes over the plain name `hdf5` in pkg-config once it is installed.
if [ -z "${HDF5_DIR:-}" ]; then
    for umbra_prefix in "${HDF5_ROOT:-}" "${HDF5_HOME:-}" "${EBROOTHDF5:-}"; do
        if [ -n "$umbra_prefix" ]; then
            export HDF5_DIR="$umbra_prefix"
            break
        fi
    done
    if [ -z "${HDF5_DIR:-}" ]; then
        case "$(pkg-config --cflags --libs hdf5 2>/dev/null)" in
            '' | *mpi*)
                for umbra_prefix in /usr/lib/*-linux-gnu/hdf5/serial; do
                    if [ -e "$umbra_prefix/include/hdf5.h" ]; then
                        export HDF5_DIR="$umbra_prefix"
                    fi
                done
                ;;
        esac
    fi
    unset umbra_prefix
fi

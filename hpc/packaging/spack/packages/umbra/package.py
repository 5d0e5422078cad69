"""Recipe of Spack's for umbra, of the commit that the checkout it lies in has:

    spack repo add hpc/packaging/spack
    spack install umbra ^openmpi          any MPI 3.1 with threads: ^mpich
    spack install umbra+ulfm              jobs that survive the loss of a rank: Open MPI 5
    spack load umbra

Spack itself was never run on it: it could not be had where this was written. A check reads it, and runs its
directives against stand-ins (hpc/packaging/check.sh).
"""

from pathlib import Path

from spack.package import *

CHECKOUT = Path(__file__).resolve().parents[5]


class Umbra(Package):
    """Trains click-through-rate models (DLRM, DeepFM, DCN v2 and kin) on CPU clusters over MPI."""

    homepage = CHECKOUT.as_uri()
    git = CHECKOUT.as_uri()

    license("MIT OR Apache-2.0")

    version("main", branch="main")

    variant("ulfm", default=False, description="Survive the loss of a rank inside the job (Open MPI 5)")

    depends_on("c", type="build")
    depends_on("rust@1.89:", type="build")
    depends_on("gmake", type="build")
    depends_on("pkgconfig", type="build")
    # Bindings of MPI are made from the mpi.h that is found.
    depends_on("llvm+clang", type="build")
    depends_on("git", type="build")

    depends_on("mpi@3.1:")
    depends_on("openmpi@5:", when="+ulfm")
    # One thread reads: the serial library is enough, and the one that is tested.
    depends_on("hdf5@1.10.3:~mpi")

    def setup_build_environment(self, env):
        env.set("MPICC", self.spec["mpi"].mpicc)
        env.set("HDF5_DIR", self.spec["hdf5"].prefix)
        env.set("LIBCLANG_PATH", self.spec["llvm"].prefix.lib)

    def install(self, spec, prefix):
        which("cargo", required=True)("build", "--release", "--locked", "-p", "umbra-mpi", "--bin", "umbra")
        installer = Executable("hpc/install.sh")
        installer.add_default_env("PREFIX", str(prefix))
        installer.add_default_env("UMBRA", "target/release/umbra")
        installer()

    def setup_run_environment(self, env):
        env.set("UMBRA_ROOT", self.prefix)
        env.set("SLURM_MPI_TYPE", "pmi2" if "mpich" in self.spec else "pmix")
        env.set("OMPI_MCA_mpi_yield_when_idle", "1")
        env.set("HDF5_USE_FILE_LOCKING", "BEST_EFFORT")

    @run_after("install")
    @on_package_attributes(run_tests=True)
    def says_what_it_is(self):
        Executable(join_path(self.prefix.bin, "umbra"))("--version")

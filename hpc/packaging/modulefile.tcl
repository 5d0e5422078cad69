#%Module1.0
## umbra @VERSION@, for Environment Modules and Lmod. It finds its files from where it lies itself: PREFIX/share/
## modulefiles/umbra/VERSION, so PREFIX may be moved.
set file [file normalize $ModulesCurrentModulefile]
set root [file dirname [file dirname [file dirname [file dirname $file]]]]

proc ModulesHelp { } {
    puts stderr "umbra @VERSION@ trains click-through-rate models over MPI: umbra --help."
    puts stderr "Job scripts for Slurm: \$UMBRA_ROOT/share/umbra/jobs; documents: \$UMBRA_ROOT/share/doc/umbra."
}
module-whatis "umbra @VERSION@: click-through-rate models on CPU clusters; @MPI@"
conflict umbra

# The modules of the MPI and the HDF5 that umbra was built with, where there are such:
# prereq openmpi/4.1.4 hdf5/1.10.8

prepend-path PATH $root/bin
prepend-path MANPATH $root/share/man
setenv UMBRA_ROOT $root
# How srun connects the ranks of this MPI.
setenv SLURM_MPI_TYPE @PLUGIN@
# As share/umbra/env.sh explains.
setenv OMPI_MCA_mpi_yield_when_idle 1
setenv HDF5_USE_FILE_LOCKING BEST_EFFORT

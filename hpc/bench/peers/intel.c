/* MKL asks itself whether it runs on a processor of Intel's, and takes AVX2 on others. Preloaded, this answers yes,
   and MKL goes by what the processor can do. */
int mkl_serv_intel_cpu_true(void) {
    return 1;
}

// Opens the program of app.cpp as a library whose names are bound otherwise, and runs it.
//
//   opener deepbind|namespace MODULE WAY LIBRARY SCENARIO
#include <dlfcn.h>

#include <cstdio>
#include <cstring>

int main(int argc, char **argv) {
  if (argc < 6) return 2;
  void *module = strcmp(argv[1], "namespace") ? dlopen(argv[2], RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND)
                                              : dlmopen(LM_ID_NEWLM, argv[2], RTLD_NOW);
  if (!module) return fprintf(stderr, "%s\n", dlerror()), 2;
  using Run = int (*)(int, char **);
  const Run run = reinterpret_cast<Run>(dlsym(module, "run"));
  const int status = run ? run(argc - 2, argv + 2) : 2;
  return status;
}

#include "compiler/Driver/Driver.h"

#ifdef MERAK_JEMALLOC
#include <jemalloc/jemalloc.h>

#if JEMALLOC_VERSION_MAJOR > 5 ||                                              \
    (JEMALLOC_VERSION_MAJOR == 5 && JEMALLOC_VERSION_MINOR >= 3)
// What jemalloc reads when it starts. A search drops tens of thousands of small
// blocks at once and makes as many of them again: a thread that may keep no
// more than some 200 of a size, as without this, gives most of them back to
// what all threads have, with locks. In memory it makes no difference.
const char *malloc_conf = "tcache_nslots_small_max:4000,lg_tcache_nslots_mul:4";
#endif
#endif

int main(int argc, char **argv) { return merak::merakcMain(argc, argv); }

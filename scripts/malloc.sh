# shellcheck shell=bash
# Sourced by scripts that start Python: settings of glibc's malloc with which a step on a CPU keeps
# its work memory instead of asking for it anew (docs/benchmarks/training.md, A step's memory), and the
# threads of a process share two heaps, which otherwise grow apart (docs/benchmarks/robustness.md).
if [ "$(uname -s)" = Linux ] && [ -z "${GLIBC_TUNABLES:-}" ]; then
    GLIBC_TUNABLES=glibc.malloc.hugetlb=1:glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=8589934592
    export GLIBC_TUNABLES=$GLIBC_TUNABLES:glibc.malloc.arena_max=2
fi

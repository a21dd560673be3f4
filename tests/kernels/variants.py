"""The kernels that are compiled and looked at without a GPU."""

import membound

from asv_bench import workloads

from .cases import BF16, FP16, FP32, Call, new, recorded, shifted

#: Ends of what a row can be: one column, within a warp, odd, not a power of two, full registers,
#: one more than a CTA holds, a whole cluster.
SHORT = (1, 8, 63, 1000, 1001, 1152, 1999, 4094)
LONG = (16384, 32767, 32768, 32769, 65536, 262143, 262144)


def _benchmarked():
    for name, op in workloads.ops(membound).items():
        for workload in workloads.grid():
            if workload.op == name:
                yield from workloads.kernels(membound, op, workload)


def _awkward():
    make = new("meta")
    with recorded() as launches:
        for n in SHORT + LONG:
            for dtype in (BF16, FP32):
                Call("softmax", make(dtype, 3, n))()
            Call("rms_norm", make(FP16, 3, n))()
            Call("rms_norm", make(BF16, 3, n), make(BF16, n))()
            Call("rms_norm", make(BF16, 3, n), make(FP32, n))()
            Call("rms_norm", make(FP32, 3, n), make(BF16, n))()
        for dtype in (BF16, FP32):
            for n in (1000, 1001):
                late = shifted(dtype, 3, n, 1, make)
                Call("softmax", late)()
                Call("softmax", late).guarded(offset=1)
                Call("rms_norm", make(dtype, 3, n), make(dtype, n + 1)[1:])()
        Call("softmax", make(BF16, 3, 2048)[:, 4:1004])()
    return (launch.kernel for launch in launches)


VARIANTS = list(dict.fromkeys([*_benchmarked(), *_awkward()]))

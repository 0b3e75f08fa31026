"""Where a framework's bits are no matter: each rule once, with its reason. A generator names the rule with the operator
that begins it; what is computed from such a result is then held against the interpreter alone."""

FLOAT_SUMS = "float sums: every kernel adds in an order of its own, and rounds after each addition"
APPROXIMATION = "float functions (exp, sin, tanh, …) are approximated, by each library to other last bits"
FLOAT_STEPS = "float32 formulas of several steps: which are contracted to multiply-adds is the compiler's choice"
NARROWED = "C leaves a float beyond the integer's range undefined when it is converted; ours saturates"
SHIFTED_OUT = (
    "a multiplier beyond those that LiteRT's fixed point is for (2³¹ and more, in comparisons 1 and more, in divisions "
    "and HARD_SWISH very small ones): it shifts by more bits than there are, or by a negative number, which C leaves "
    "undefined; ours saturates or vanishes"
)
NAN_POSITION = "NaN has no order: the position that ARG_MAX finds beside one follows from the order of comparisons"
FUSED = "optimizing, ONNX Runtime makes one QLinear operator of it, which adds the zero point before rounding; so do we"
LARGEST = "without a fused activation LiteRT clips floats to ±FLT_MAX, so that no result is infinite; ours may be"
PYTORCH_TAIL = (
    "PyTorch's scalar loops for elements that fill no vector contract products and sums otherwise than its vector "
    "loops, and add the zero point before they round: by one step where a result lies on a midpoint or beside one"
)
DEPTHWISE_PAIRS = (
    "fbgemm's depthwise kernels add pairs of products in 16 bits and saturate (vpmaddubsw), which is why PyTorch's "
    "observers reduce the range on x86; ours are exact"
)
RECIPROCAL = (
    "oneDNN multiplies the sums of averages by 1/n in float32, which for some n takes midpoints to the other side; "
    "ours divides"
)
LOWEST_INT32 = (
    "without calibration MXNet's requantize takes |−2³¹|, which a sum saturates to, for −2³¹: the signs of all results "
    "are wrong; ours are right"
)
SIGN_OF_ZERO = "−0.0 equals 0.0: which of them a minimum, maximum or rounding function gives IEEE 754 leaves open"

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
    "PyTorch's vector loops and the scalar loops for the last elements contract products and sums differently: by one "
    "step where a result lies beside a midpoint"
)
SIGN_OF_ZERO = "−0.0 equals 0.0: which of them a minimum, maximum or rounding function gives IEEE 754 leaves open"

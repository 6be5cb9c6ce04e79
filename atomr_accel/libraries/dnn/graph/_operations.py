"""The operations of graphs as type checkers know them: methods that ``Graph`` makes as needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    from .user_graph import GraphTensor

    One: TypeAlias = Callable[..., GraphTensor]
    Several: TypeAlias = Callable[..., tuple[GraphTensor, ...]]
    Either: TypeAlias = Callable[..., GraphTensor | tuple[GraphTensor, ...]]


class GraphOperations:
    """A method for each operation of the table: inputs in their order, attributes by name.

    What attention and normalisations give depends on their attributes: a tensor, or a tuple.
    """

    conv_fprop: One
    conv_dgrad: One
    conv_wgrad: One
    matmul: One
    reduction: One
    abs: One
    ceil: One
    cos: One
    elu: One
    erf: One
    exp: One
    floor: One
    gelu: One
    gelu_approx_tanh: One
    identity: One
    log: One
    neg: One
    reciprocal: One
    rsqrt: One
    sigmoid: One
    sin: One
    softplus: One
    sqrt: One
    tan: One
    tanh: One
    relu: One
    swish: One
    add: One
    add_square: One
    div: One
    mul: One
    sub: One
    max: One
    min: One
    mod: One
    pow: One
    cmp_eq: One
    cmp_ge: One
    cmp_gt: One
    cmp_le: One
    cmp_lt: One
    cmp_neq: One
    logical_and: One
    logical_or: One
    logical_not: One
    binary_select: One
    gen_index: One
    elu_backward: One
    gelu_backward: One
    gelu_approx_tanh_backward: One
    relu_backward: One
    sigmoid_backward: One
    softplus_backward: One
    swish_backward: One
    tanh_backward: One
    batchnorm_inference: One
    block_scale_dequantize: One
    reshape: One
    slice: One
    concatenate: One
    transpose: One
    resample: One
    resample_backward: One
    adaptive_pool: One
    adaptive_pool_backward: One
    interpolate: One
    interpolate_backward: One

    genstats: Several
    layernorm_backward: Several
    rmsnorm_backward: Several
    instancenorm_backward: Several
    groupnorm_backward: Several
    batchnorm_backward: Several

    layernorm: Either
    rmsnorm: Either
    instancenorm: Either
    groupnorm: Either
    batchnorm: Either
    sdpa: Either
    sdpa_backward: Either
    sdpa_fp8: Either
    sdpa_fp8_backward: Either

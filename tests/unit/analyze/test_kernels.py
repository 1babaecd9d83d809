"""Kernels as they are called on real cards, and what they do."""

import pytest

from flatout.analyze.trace.kernels import kind_of, uses_tensor_cores

KERNELS = [
    # Names as an H200 with torch 2.11 gave them.
    ("nvjet_sm90_tst_192x128_64x5_1x2_h_bz_coopB_NNT", "matmul", True),
    ("nvjet_sm90_tst_192x128_64x5_1x2_h_bz_coopB_bias_TNT", "matmul", True),
    ("cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_26_64x64x64_1x4", "attention", True),
    ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(a", "optimizer", None),
    (
        "triton_per_fused__softmax__softmax_backward_data__to_copy_div_eq_masked_fill_vie",
        "memory_bound",
        None,
    ),
    (
        "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda",
        "memory_bound",
        None,
    ),
    (
        "void at::native::(anonymous namespace)::cunn_SoftMaxBackward<4, float, float, fl",
        "memory_bound",
        None,
    ),
    ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>", "reduction", None),
    # Parts of cuDNN's backward pass of attention: neither a convolution nor nobody's.
    ("void cudnn::fusion::compute_dot_do_o_specialized<true, 128>(void const*, void*)", "attention", None),
    ("void cudnn::fusion::convert_dq_to_16bits<true>(void const*, void*)", "attention", None),
    # Of ours (levers/loss_kernel.py).
    ("cross_entropy_of_a_row", "memory_bound", None),
    # Inductor names them after what they stand beside.
    ("triton_poi_fused_convolution_relu_1", "memory_bound", None),
    ("triton_poi_fused__scaled_dot_product_flash_attention_view_4", "memory_bound", None),
    ("triton_per_fused_add_mm_native_layer_norm_2", "memory_bound", None),
    ("triton_for_fused_adamw_3", "memory_bound", None),
    ("triton_red_fused_convolution_backward_5", "reduction", None),
    ("triton_tem_fused_mm_7", "matmul", None),
    # Others.
    ("ampere_sgemm_128x64_tn", "matmul", False),
    ("sm80_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize128x128x16_stage3", "matmul", True),
    ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x32x8_stage3", "matmul", False),
    ("void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x128_16x4_nt_align4>", "matmul", True),
    ("void cutlass::Kernel2<cutlass_80_simt_sgemm_128x64_8x5_nt_align1>", "matmul", False),
    ("void cudnn::winograd_nonfused::winogradForwardFilter4x4<float, float>", "convolution", None),
    ("sm90_xmma_wgrad_implicit_gemm_indexed_bf16bf16_bf16f32_f32_nhwckrsc_nhwc", "convolution", True),
    ("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128>>", "attention", None),
    ("fmha_cutlassF_f32_aligned_64x64_rf_sm80", "attention", None),
    ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "communication", None),
    ("Memcpy HtoD (Pageable -> Device)", "copy", None),
    ("Memset (Device)", "copy", None),
    ("Cijk_Ailk_Bljk_HHS_BH_MT128x128x32", "matmul", None),
    ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, int, 512, true, 1, true>", "memory_bound", None),
    ("void cudnn::bn_bw_1C11_kernel_new<float, float, float2, 512, true, 1>", "memory_bound", None),
    ("my_own_kernel(int*)", "other_gpu", None),
]


@pytest.mark.parametrize(("name", "kind", "on_tensor_cores"), KERNELS)
def test_kinds(name: str, kind: str, on_tensor_cores: bool | None) -> None:
    assert kind_of(name) == kind
    if kind in ("matmul", "convolution"):
        assert uses_tensor_cores(name) is on_tensor_cores

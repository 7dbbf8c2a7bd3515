# Finds the headers of FlashInfer (and of the CUTLASS beside them), which kernels/cuda/flash_*.cu include as system
# headers: sets RUNAHEAD_FLASHINFER_INCLUDE, a list of folders, or says in `missing` why there is none.
#
# How its sources are compiled. All of them: -DNDEBUG in every build type (else the headers print and abort by
# themselves), and no warnings of nvcc's own as errors beyond ours.
#   flash_attention.cc          plain C++
#   flash_decode.cu, flash_prefill_any.cu, flash_prefill_window.cu
#                               as our other kernels: sm_80, sm_90 and PTX of compute_90
#   flash_prefill_hopper_*.cu   --generate-code=arch=compute_90a,code=sm_90a and nothing else (the PTX of 90a runs
#                               nowhere else), and --expt-relaxed-constexpr
set(RUNAHEAD_FLASH_SOURCES flash_attention.cc)
set(RUNAHEAD_FLASH_KERNELS flash_decode.cu flash_prefill_any.cu flash_prefill_window.cu)
set(RUNAHEAD_FLASH_HOPPER_KERNELS
  flash_prefill_hopper_bf16_128.cu flash_prefill_hopper_bf16_128_dense.cu flash_prefill_hopper_bf16_64.cu
  flash_prefill_hopper_f16_128.cu)
set(RUNAHEAD_FLASH_HOPPER_CODE --generate-code=arch=compute_90a,code=sm_90a --expt-relaxed-constexpr)

set(RUNAHEAD_FLASHINFER_INCLUDE "" CACHE STRING
  "Folders of FlashInfer's and CUTLASS's headers (empty: deploy/flashinfer fetches them)")
if(NOT RUNAHEAD_FLASHINFER_INCLUDE)
  execute_process(COMMAND ${CMAKE_SOURCE_DIR}/deploy/flashinfer
    OUTPUT_VARIABLE folders OUTPUT_STRIP_TRAILING_WHITESPACE
    ERROR_VARIABLE reason ERROR_STRIP_TRAILING_WHITESPACE
    RESULT_VARIABLE failed)
  if(failed)
    string(REGEX REPLACE ".*\n" "" reason "${reason}")
    set(missing "FlashInfer's headers are not there: ${reason}")
  else()
    string(REPLACE "\n" ";" RUNAHEAD_FLASHINFER_INCLUDE "${folders}")
  endif()
endif()
foreach(header flashinfer/attention/hopper/prefill_sm90.cuh cute/tensor.hpp)
  set(found OFF)
  foreach(folder ${RUNAHEAD_FLASHINFER_INCLUDE})
    if(EXISTS ${folder}/${header})
      set(found ON)
    endif()
  endforeach()
  if(NOT found AND missing STREQUAL "")
    set(missing "there is no ${header} in RUNAHEAD_FLASHINFER_INCLUDE (${RUNAHEAD_FLASHINFER_INCLUDE})")
  endif()
endforeach()

# Imported targets for LibTorch, made by hand: torch::c10, torch::cpu, torch::python.
#
# find_package(Torch) fails wherever the CUDA toolkit of the wheel is missing and overrides compile
# flags, so it is not used. AUTOPART_TORCH_DIR names the folder that holds include/ and lib/; by
# default it is asked from the Python in use (AUTOPART_PYTHON).

if(NOT AUTOPART_TORCH_DIR)
  execute_process(
    COMMAND ${AUTOPART_PYTHON} -c "import importlib.util, pathlib; print(pathlib.Path(importlib.util.find_spec('torch').origin).parent)"
    OUTPUT_VARIABLE _torch_dir OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE _torch_rc ERROR_QUIET)
  if(NOT _torch_rc EQUAL 0)
    message(FATAL_ERROR
      "torch was not found by ${AUTOPART_PYTHON}. Install it (make deps), name another folder with "
      "-DAUTOPART_TORCH_DIR=..., or build the torch-free half with -DAUTOPART_WITH_TORCH=OFF.")
  endif()
  set(AUTOPART_TORCH_DIR "${_torch_dir}" CACHE PATH "Folder of LibTorch (include/, lib/)")
endif()

function(_autopart_torch_library target file)
  add_library(${target} SHARED IMPORTED GLOBAL)
  set_target_properties(${target} PROPERTIES IMPORTED_LOCATION "${AUTOPART_TORCH_DIR}/lib/${file}")
  if(NOT EXISTS "${AUTOPART_TORCH_DIR}/lib/${file}")
    message(FATAL_ERROR "${AUTOPART_TORCH_DIR}/lib/${file} does not exist: is AUTOPART_TORCH_DIR right?")
  endif()
endfunction()

_autopart_torch_library(torch::c10 libc10.so)
target_include_directories(torch::c10 SYSTEM INTERFACE
  "${AUTOPART_TORCH_DIR}/include" "${AUTOPART_TORCH_DIR}/include/torch/csrc/api/include")
_autopart_torch_library(torch::cpu libtorch_cpu.so)
target_link_libraries(torch::cpu INTERFACE torch::c10)
_autopart_torch_library(torch::python libtorch_python.so)
target_link_libraries(torch::python INTERFACE torch::cpu)
# libtorch_cpu.so needs the wheel's own copies of its dependencies (its rpath finds them).
target_link_options(torch::cpu INTERFACE "LINKER:--allow-shlib-undefined")

/* Runs a compiled library in TVM's virtual machine: its `main` on arrays from a file, as main.c does for one function.

   usage: machine LIBRARY REQUEST RESULT
   The files are those of main.c; all arguments are read. RESULT: the bytes of all outputs, in order. */
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <vector>

namespace ffi = tvm::ffi;

constexpr int kPooled = 2;  // the virtual machine's kind of allocator
constexpr size_t kAlignment = 64;

struct Allocator {
  void AllocData(DLTensor* tensor) {
    size_t size = (ffi::GetDataSize(*tensor) + kAlignment - 1) / kAlignment * kAlignment;
    tensor->data = std::aligned_alloc(kAlignment, size ? size : kAlignment);
  }
  void FreeData(DLTensor* tensor) { std::free(tensor->data); }
};

static int64_t Word(std::ifstream& file) {
  int64_t value = 0;
  file.read(reinterpret_cast<char*>(&value), sizeof value);
  return value;
}

static std::vector<ffi::Tensor> ReadTensors(const char* path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<ffi::Tensor> tensors;
  for (int64_t left = Word(file); left > 0; --left) {
    Word(file);  // the kind
    DLDataType dtype{static_cast<uint8_t>(Word(file)), static_cast<uint8_t>(0), 1};
    dtype.bits = static_cast<uint8_t>(Word(file));
    std::vector<int64_t> shape(Word(file));
    for (int64_t& extent : shape) extent = Word(file);
    Word(file);  // the size
    tensors.push_back(ffi::Tensor::FromNDAlloc(Allocator(), ffi::Shape(shape), dtype, DLDevice{kDLCPU, 0}));
  }
  for (ffi::Tensor& tensor : tensors) {
    file.read(static_cast<char*>(tensor.data_ptr()), ffi::GetDataSize(*tensor.GetDLTensorPtr()));
  }
  if (!file) throw std::runtime_error("the request ends early");
  return tensors;
}

static void Write(std::ofstream& file, const ffi::Tensor& tensor) {
  file.write(static_cast<const char*>(tensor.data_ptr()), ffi::GetDataSize(*tensor.GetDLTensorPtr()));
}

int main(int argc, char** argv) try {
  if (argc != 4) throw std::runtime_error("usage: machine LIBRARY REQUEST RESULT");
  std::vector<ffi::Tensor> inputs = ReadTensors(argv[2]);
  ffi::Module library = ffi::Module::LoadFromFile(argv[1]);
  ffi::Module machine = (*library->GetFunction("vm_load_executable"))().cast<ffi::Module>();
  (*machine->GetFunction("vm_initialization"))(static_cast<int>(kDLCPU), 0, kPooled);
  std::vector<ffi::AnyView> values(inputs.begin(), inputs.end());
  ffi::Any result;
  machine->GetFunction("main").value().CallPacked(values.data(), static_cast<int>(values.size()), &result);

  std::ofstream file(argv[3], std::ios::binary);
  if (std::optional<ffi::Tensor> one = result.as<ffi::Tensor>()) {
    Write(file, *one);
  } else {
    for (const ffi::Tensor& output : result.cast<ffi::Array<ffi::Tensor>>()) Write(file, output);
  }
  return file.flush() ? 0 : 1;
} catch (const std::exception& error) {
  std::cerr << error.what() << std::endl;
  return 1;
}

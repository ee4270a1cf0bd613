#include "checkpoint/tensor.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "checkpoint/file.h"
#include "checkpoint/limits.h"

namespace checkpoint {
namespace {

const char kAdvice[] = "The object tree of this file is damaged, or was not written by torch.save.";

Error Malformed(std::string found, std::string expected, const std::string& where) {
  return {ErrorCode::kMalformedTensor, std::move(found), std::move(expected), where, kAdvice};
}

bool IsGlobal(const Value& value, std::string_view module, std::string_view name) {
  const GlobalNode* global = As<GlobalNode>(value);
  return global != nullptr && global->module == module && global->name == name;
}

// What stands in front of the arguments of _rebuild_tensor_v2.
enum class Form { kNone, kPlain, kParameter, kFromType };

// The form of a REDUCE, and its arguments; kNone for anything that is no tensor.
Form FormOf(const Value& value, const std::vector<Value>** arguments) {
  const ObjectNode* object = As<ObjectNode>(value);
  if (object == nullptr || object->how != ObjectNode::How::kReduce) return Form::kNone;
  const TupleNode* tuple = As<TupleNode>(object->args);
  if (tuple == nullptr) return Form::kNone;
  *arguments = &tuple->items;
  const Value& callable = object->callable;
  if (IsGlobal(callable, "torch._utils", "_rebuild_tensor_v2")) return Form::kPlain;
  if (IsGlobal(callable, "torch._utils", "_rebuild_parameter") ||
      IsGlobal(callable, "torch._utils", "_rebuild_parameter_with_state")) {
    return Form::kParameter;
  }
  if (IsGlobal(callable, "torch._tensor", "_rebuild_from_type_v2")) return Form::kFromType;
  return Form::kNone;
}

// The arguments of the _rebuild_tensor_v2 inside, whatever is around it; null where there is none.
// `requires_grad` is set where an outer form says it.
const std::vector<Value>* Unwrap(const Value& value, std::optional<bool>* requires_grad) {
  const Value* at = &value;
  // A Parameter around a tensor with attributes is the deepest real nesting; 4 bounds it.
  for (int depth = 0; depth < 4; ++depth) {
    const std::vector<Value>* arguments = nullptr;
    switch (FormOf(*at, &arguments)) {
      case Form::kNone:
        return nullptr;
      case Form::kPlain:
        return arguments;
      case Form::kParameter: {  // (data, requires_grad, hooks[, state])
        if (arguments->size() < 3 || arguments->size() > 4) return nullptr;
        const bool* flag = As<bool>((*arguments)[1]);
        if (flag == nullptr) return nullptr;
        if (!requires_grad->has_value()) *requires_grad = *flag;
        at = &(*arguments)[0];
        break;
      }
      case Form::kFromType: {  // (function, class, arguments of the function, attributes)
        if (arguments->size() != 4) return nullptr;
        const TupleNode* inner = As<TupleNode>((*arguments)[2]);
        if (inner == nullptr) return nullptr;
        if (IsGlobal((*arguments)[0], "torch._utils", "_rebuild_tensor_v2")) return &inner->items;
        if (!IsGlobal((*arguments)[0], "torch._utils", "_rebuild_parameter")) return nullptr;
        if (inner->items.size() != 3) return nullptr;
        const bool* flag = As<bool>(inner->items[1]);
        if (flag == nullptr) return nullptr;
        if (!requires_grad->has_value()) *requires_grad = *flag;
        at = &inner->items[0];
        break;
      }
    }
  }
  return nullptr;
}

// The numbers of a tuple, list or torch.Size.
Result<std::vector<int64_t>> Numbers(const Value& value, const char* what,
                                     const std::string& where) {
  const std::vector<Value>* items = nullptr;
  if (const TupleNode* tuple = As<TupleNode>(value)) items = &tuple->items;
  if (const ListNode* list = As<ListNode>(value)) items = &list->items;
  if (const ObjectNode* object = As<ObjectNode>(value);
      object != nullptr && IsGlobal(object->callable, "torch", "Size")) {
    const TupleNode* arguments = As<TupleNode>(object->args);
    if (arguments != nullptr && arguments->items.size() == 1) {
      if (const TupleNode* tuple = As<TupleNode>(arguments->items[0])) items = &tuple->items;
    }
  }
  if (items == nullptr)
    return Malformed(std::string("a ") + what + " that is no tuple", "a tuple of integers", where);
  if (static_cast<int64_t>(items->size()) > kTensorDimensionsMax) {
    return Error{ErrorCode::kLimitExceeded, std::to_string(items->size()) + " dimensions",
                 "at most " + std::to_string(kTensorDimensionsMax), where, kAdvice};
  }
  std::vector<int64_t> numbers;
  for (const Value& item : *items) {
    const int64_t* number = As<int64_t>(item);
    if (number == nullptr || *number < 0) {
      return Malformed(std::string("a ") + what + " with an entry that is no count",
                       "integers of at least 0", where);
    }
    numbers.push_back(*number);
  }
  return numbers;
}

// Every element inside the storage.
Status CheckInside(const TensorView& view, const std::string& where) {
  CK_TRY(const int64_t numel, NumelOf(view.shape, where));
  const int64_t storage_numel = view.storage->numel;
  int64_t last = view.offset;
  bool fits = true;
  for (size_t i = 0; i < view.shape.size() && numel > 0; ++i) {
    int64_t reach = 0;
    fits = fits && !__builtin_mul_overflow(view.shape[i] - 1, view.strides[i], &reach) &&
           !__builtin_add_overflow(last, reach, &last);
  }
  // A view without elements may stand at the end.
  fits = fits && (numel > 0 ? last < storage_numel : view.offset <= storage_numel);
  if (fits) return Done{};
  return Malformed("a view at element " + std::to_string(view.offset) + " that leaves its storage",
                   "one inside the " + std::to_string(storage_numel) + " elements of storage " +
                       view.storage->key,
                   where);
}

float FloatFromBits(uint32_t bits) {
  float number;
  std::memcpy(&number, &bits, sizeof number);
  return number;
}

// IEEE half: 1 sign, 5 exponent (bias 15), 10 fraction bits.
double HalfToDouble(uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const double fraction = bits & 1023;
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  if (exponent == 31) {
    // Through float, whose infinity and NaN are made of the same fields.
    return FloatFromBits(uint32_t{bits & 0x8000u} << 16 | 0x7f800000u |
                         uint32_t{bits & 1023u} << 13);
  }
  double scale = 1.0;
  const int power = exponent == 0 ? -24 : exponent - 25;
  for (int i = 0; i < std::abs(power); ++i) scale *= power < 0 ? 0.5 : 2.0;
  return sign * (exponent == 0 ? fraction : fraction + 1024.0) * scale;
}

template <typename Number>
double LoadAs(const std::byte* at) {
  Number number;
  std::memcpy(&number, at, sizeof number);
  return static_cast<double>(number);
}

double LoadNumber(DType dtype, const std::byte* at) {
  switch (dtype) {
    case DType::kFloat32:
      return LoadAs<float>(at);
    case DType::kFloat64:
      return LoadAs<double>(at);
    case DType::kInt64:
      return LoadAs<int64_t>(at);
    case DType::kInt32:
      return LoadAs<int32_t>(at);
    case DType::kInt16:
      return LoadAs<int16_t>(at);
    case DType::kInt8:
      return LoadAs<int8_t>(at);
    case DType::kUInt8:
      return LoadAs<uint8_t>(at);
    case DType::kBool:
      return *at == std::byte{0} ? 0.0 : 1.0;
    case DType::kFloat16: {
      uint16_t bits;
      std::memcpy(&bits, at, sizeof bits);
      return HalfToDouble(bits);
    }
    case DType::kBFloat16: {
      uint16_t bits;
      std::memcpy(&bits, at, sizeof bits);
      return FloatFromBits(uint32_t{bits} << 16);
    }
  }
  CHECK(false, << "dtype=" << static_cast<int>(dtype));
  return 0;
}

}  // namespace

int64_t TensorView::numel() const {
  int64_t product = 1;
  for (const int64_t dimension : shape) product *= dimension;
  return product;
}

bool TensorView::IsContiguous() const {
  CHECK(shape.size() == strides.size(), << shape.size() << " and " << strides.size());
  if (numel() == 0) return true;
  int64_t expected = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    if (shape[i] == 1) continue;
    if (strides[i] != expected) return false;
    expected *= shape[i];
  }
  return true;
}

std::vector<int64_t> ContiguousStrides(const std::vector<int64_t>& shape) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t i = shape.size(); i-- > 1;)
    strides[i - 1] = strides[i] * std::max<int64_t>(shape[i], 1);
  return strides;
}

Result<int64_t> NumelOf(const std::vector<int64_t>& shape, const std::string& where) {
  // A zero anywhere makes the product zero; the other dimensions are bounded all the same.
  int64_t product = 1;
  bool empty = false;
  for (const int64_t dimension : shape) {
    if (dimension < 0)
      return Malformed("dimension " + std::to_string(dimension), "at least 0", where);
    if (dimension == 0) {
      empty = true;
    } else if (dimension > kTensorNumelMax || product > kTensorNumelMax / dimension) {
      return Error{ErrorCode::kLimitExceeded,
                   "a shape of more than " + std::to_string(kTensorNumelMax) + " elements", "fewer",
                   where, kAdvice};
    } else {
      product *= dimension;
    }
  }
  return empty ? int64_t{0} : product;
}

bool IsTensor(const Value& value) {
  const std::vector<Value>* arguments = nullptr;
  return FormOf(value, &arguments) != Form::kNone;
}

Result<TensorView> DecodeTensor(const Value& value, const std::string& where) {
  std::optional<bool> requires_grad;
  const std::vector<Value>* arguments = Unwrap(value, &requires_grad);
  if (arguments == nullptr) return Malformed("something else than a tensor", "a tensor", where);
  // (storage, offset, shape, strides, requires_grad, hooks[, metadata])
  if (arguments->size() < 6 || arguments->size() > 7) {
    return Malformed("_rebuild_tensor_v2 with " + std::to_string(arguments->size()) + " arguments",
                     "6 or 7", where);
  }
  const StorageNode* storage = As<StorageNode>((*arguments)[0]);
  const int64_t* offset = As<int64_t>((*arguments)[1]);
  const bool* own_requires_grad = As<bool>((*arguments)[4]);
  if (storage == nullptr || storage->storage == nullptr || offset == nullptr || *offset < 0 ||
      own_requires_grad == nullptr) {
    return Malformed("_rebuild_tensor_v2 with arguments of other types",
                     "(storage, offset, shape, strides, bool, hooks)", where);
  }
  TensorView view;
  view.storage = storage->storage;
  view.offset = *offset;
  view.requires_grad = requires_grad.value_or(*own_requires_grad);
  CK_TRY(view.shape, Numbers((*arguments)[2], "shape", where));
  CK_TRY(view.strides, Numbers((*arguments)[3], "stride", where));
  if (view.shape.size() != view.strides.size()) {
    return Malformed(std::to_string(view.strides.size()) + " strides",
                     std::to_string(view.shape.size()) + ", one for each dimension", where);
  }
  CK_DO(CheckInside(view, where));
  return view;
}

Value MakeTensor(const TensorView& view) {
  CHECK(view.storage != nullptr);
  CHECK(view.shape.size() == view.strides.size(),
        << view.shape.size() << " and " << view.strides.size());
  const auto tuple = [](const std::vector<int64_t>& numbers) {
    std::vector<Value> items;
    for (const int64_t number : numbers) items.push_back(MakeInt(number));
    return MakeTuple(std::move(items));
  };
  auto storage = std::make_shared<Node>(Node{StorageNode{view.storage, nullptr}});
  return MakeReduce("torch._utils", "_rebuild_tensor_v2",
                    {std::move(storage), MakeInt(view.offset), tuple(view.shape),
                     tuple(view.strides), MakeBool(view.requires_grad), MakeOrderedDict({})});
}

StoragePtr MakeStorage(DType dtype, int64_t numel) {
  CHECK(numel >= 0, << "numel=" << numel);
  auto storage = std::make_shared<Storage>();
  storage->dtype = dtype;
  storage->numel = numel;
  return storage;
}

std::span<const std::byte> StorageBytes(const Storage& storage) {
  CHECK(storage.file != nullptr, << "storage " << storage.key);
  return storage.file->bytes().subspan(static_cast<size_t>(storage.file_offset),
                                       static_cast<size_t>(storage.bytes()));
}

Result<std::vector<double>> ReadNumbers(const TensorView& view, int64_t numel_max,
                                        const std::string& where) {
  const int64_t numel = view.numel();
  if (numel > numel_max) {
    return Error{ErrorCode::kLimitExceeded, std::to_string(numel) + " elements",
                 "at most " + std::to_string(numel_max), where, kAdvice};
  }
  const std::span<const std::byte> bytes = StorageBytes(*view.storage);
  const int64_t element_bytes = ElementBytes(view.storage->dtype);
  std::vector<double> numbers;
  std::vector<int64_t> index(view.shape.size(), 0);
  for (int64_t i = 0; i < numel; ++i) {
    int64_t at = view.offset;
    for (size_t d = 0; d < index.size(); ++d) at += index[d] * view.strides[d];
    numbers.push_back(LoadNumber(view.storage->dtype, bytes.data() + at * element_bytes));
    for (size_t d = index.size(); d-- > 0;) {
      if (++index[d] < view.shape[d]) break;
      index[d] = 0;
    }
  }
  return numbers;
}

}  // namespace checkpoint

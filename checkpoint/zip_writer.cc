// Laying out and writing torch.save zips, byte for byte as torch 2.11 does. Format:
// docs/format/container.md.
#include <algorithm>
#include <functional>
#include <unordered_set>

#include "checkpoint/container.h"
#include "checkpoint/tensor.h"
#include "checkpoint/zip_format.h"

namespace checkpoint {
namespace {

constexpr uint64_t kSaturated = zip::kSaturated32;

// One record and where it lies.
struct Placed {
  std::string full_name;
  int64_t bytes = 0;
  int64_t header_offset = 0, payload_offset = 0, end = 0;  // end: behind the descriptor
  int64_t zip64_bytes = 0,
          filler_bytes = 0;  // of the local extra field; filler without its 4-byte head

  bool WideSize() const { return static_cast<uint64_t>(bytes) >= kSaturated; }
  bool WideOffset() const { return static_cast<uint64_t>(header_offset) >= kSaturated; }
};

// Appends records behind each other.
class Layout {
 public:
  explicit Layout(std::string root_name) : root_name_(std::move(root_name)) {}

  void Add(const std::string& name, int64_t bytes) {
    Placed record;
    record.full_name = root_name_ + "/" + name;
    record.bytes = bytes;
    record.header_offset = at_;
    const bool wide = record.WideSize() || record.WideOffset();
    // 4 bytes of head, then both sizes and the offset, each only where it does not fit 32 bits.
    record.zip64_bytes =
        wide ? 4 + (record.WideSize() ? 16 : 0) + (record.WideOffset() ? 8 : 0) : 0;
    const int64_t start = at_ + zip::kLocalBytes + static_cast<int64_t>(record.full_name.size()) +
                          record.zip64_bytes + 4;
    record.payload_offset =
        (start + zip::kPayloadAlignment - 1) / zip::kPayloadAlignment * zip::kPayloadAlignment;
    record.filler_bytes = record.payload_offset - start;
    // An empty record has no descriptor.
    const int64_t descriptor_bytes =
        bytes == 0 ? 0 : (wide ? zip::kDescriptor64Bytes : zip::kDescriptorBytes);
    record.end = record.payload_offset + bytes + descriptor_bytes;
    at_ = record.end;
    records_.push_back(std::move(record));
  }

  const std::vector<Placed>& records() const { return records_; }
  int64_t end() const { return at_; }

 private:
  std::string root_name_;
  std::vector<Placed> records_;
  int64_t at_ = 0;
};

constexpr size_t kFirstStorage = 4;  // data.pkl and three small records stand in front
constexpr int64_t kSerializationIdBytes = 40;

Layout LayOut(const std::string& root_name, int64_t pickle_bytes,
              const std::vector<StoragePtr>& storages) {
  Layout layout(root_name);
  layout.Add("data.pkl", pickle_bytes);
  layout.Add(".format_version", 1);
  layout.Add(".storage_alignment", 2);
  layout.Add("byteorder", 6);
  for (size_t i = 0; i < storages.size(); ++i) {
    layout.Add("data/" + std::to_string(i), storages[i]->bytes());
  }
  layout.Add("version", 2);
  layout.Add(".data/serialization_id", kSerializationIdBytes);
  return layout;
}

int64_t DirectoryBytes(const Layout& layout) {
  int64_t bytes = 0;
  for (const Placed& record : layout.records()) {
    bytes +=
        zip::kCentralBytes + static_cast<int64_t>(record.full_name.size()) + record.zip64_bytes;
  }
  return bytes;
}

uint16_t Flags(const Placed& record) {
  return record.bytes == 0 ? zip::kFlagUtf8
                           : static_cast<uint16_t>(zip::kFlagUtf8 | zip::kFlagDescriptor);
}

// torch's local headers have 0 as the stored size, which is not known yet when it writes them.
void AppendZip64(std::string& out, const Placed& record, int64_t stored_bytes) {
  if (record.zip64_bytes == 0) return;
  zip::Append<uint16_t>(out, zip::kExtraZip64);
  zip::Append<uint16_t>(out, static_cast<uint16_t>(record.zip64_bytes - 4));
  if (record.WideSize()) {
    zip::Append<int64_t>(out, record.bytes);
    zip::Append<int64_t>(out, stored_bytes);
  }
  if (record.WideOffset()) zip::Append<int64_t>(out, record.header_offset);
}

// Sizes and CRC are zero here: the descriptor and the directory have them.
std::string LocalHeader(const Placed& record) {
  std::string out;
  zip::Append<uint32_t>(out, zip::kLocalSignature);
  zip::Append<uint16_t>(out, 0);  // version needed
  zip::Append<uint16_t>(out, Flags(record));
  out.append(18, '\0');  // method stored, time, date, CRC, sizes
  zip::Append<uint16_t>(out, static_cast<uint16_t>(record.full_name.size()));
  zip::Append<uint16_t>(out, static_cast<uint16_t>(record.zip64_bytes + 4 + record.filler_bytes));
  out += record.full_name;
  AppendZip64(out, record, 0);
  out += "FB";
  zip::Append<uint16_t>(out, static_cast<uint16_t>(record.filler_bytes));
  out.append(static_cast<size_t>(record.filler_bytes), 'Z');
  return out;
}

std::string Descriptor(const Placed& record, uint32_t crc) {
  std::string out;
  if (record.bytes == 0) return out;
  zip::Append<uint32_t>(out, zip::kDescriptorSignature);
  zip::Append<uint32_t>(out, crc);
  for (int i = 0; i < 2; ++i) {
    if (record.zip64_bytes == 0) {
      zip::Append<uint32_t>(out, static_cast<uint32_t>(record.bytes));
    } else {
      zip::Append<int64_t>(out, record.bytes);
    }
  }
  return out;
}

uint32_t Saturate(int64_t number) {
  return static_cast<uint32_t>(std::min(static_cast<uint64_t>(number), kSaturated));
}

void AppendCentral(std::string& out, const Placed& record, uint32_t crc) {
  zip::Append<uint32_t>(out, zip::kCentralSignature);
  zip::Append<uint32_t>(out, 0);  // versions made by and needed
  zip::Append<uint16_t>(out, Flags(record));
  out.append(6, '\0');  // method stored, time, date
  zip::Append<uint32_t>(out, crc);
  zip::Append<uint32_t>(out, Saturate(record.bytes));
  zip::Append<uint32_t>(out, Saturate(record.bytes));
  zip::Append<uint16_t>(out, static_cast<uint16_t>(record.full_name.size()));
  zip::Append<uint16_t>(out, static_cast<uint16_t>(record.zip64_bytes));
  out.append(10, '\0');  // comment, disk, attributes
  zip::Append<uint32_t>(out, Saturate(record.header_offset));
  out += record.full_name;
  AppendZip64(out, record, record.bytes);
}

// The zip64 end record, its locator and the plain end record: torch writes all three always.
void AppendEnd(std::string& out, int64_t count, int64_t directory_offset, int64_t directory_bytes) {
  zip::Append<uint32_t>(out, zip::kEnd64Signature);
  zip::Append<int64_t>(out, zip::kEnd64Bytes - 12);
  zip::Append<uint16_t>(out, 0x031e);  // made by: unix, 3.0
  zip::Append<uint16_t>(out, 45);      // needed: zip64
  out.append(8, '\0');                 // disks
  zip::Append<int64_t>(out, count);
  zip::Append<int64_t>(out, count);
  zip::Append<int64_t>(out, directory_bytes);
  zip::Append<int64_t>(out, directory_offset);
  zip::Append<uint32_t>(out, zip::kLocatorSignature);
  zip::Append<uint32_t>(out, 0);
  zip::Append<int64_t>(out, directory_offset + directory_bytes);
  zip::Append<uint32_t>(out, 1);
  const uint16_t narrow_count = static_cast<uint16_t>(std::min<int64_t>(count, zip::kSaturated16));
  zip::Append<uint32_t>(out, zip::kEndSignature);
  out.append(4, '\0');  // disks
  zip::Append<uint16_t>(out, narrow_count);
  zip::Append<uint16_t>(out, narrow_count);
  zip::Append<uint32_t>(out, Saturate(directory_bytes));
  zip::Append<uint32_t>(out, Saturate(directory_offset));
  zip::Append<uint16_t>(out, 0);  // comment
}

uint64_t HashCombine(uint64_t seed, uint64_t value) {
  return seed ^ (value + 0x9e3779b9 + (seed << 6) + (seed >> 2));
}

std::string Padded20(uint64_t number) {
  const std::string digits = std::to_string(number);
  return std::string(20 - digits.size(), '0') + digits;
}

// As torch computes it: one combined hash of the names, one of the CRCs in data descriptors (empty
// records have none). torch walks its std::unordered_set of names for the first, so the same
// container and hash stand here. A fingerprint; no reader of ours depends on it.
std::string SerializationId(const std::vector<std::string>& names,
                            const std::vector<uint32_t>& crcs) {
  std::unordered_set<std::string> written;
  for (const std::string& name : names) written.insert(name);
  uint64_t name_hash = 0;
  for (const std::string& name : written)
    name_hash = HashCombine(name_hash, std::hash<std::string>{}(name));
  uint64_t crc_hash = 0;
  for (const uint32_t crc : crcs) crc_hash = HashCombine(crc_hash, crc);
  return Padded20(name_hash) + Padded20(crc_hash);
}

// Joins neighbouring pieces to one write.
class FrameWriter {
 public:
  explicit FrameWriter(OutputFile& file) : file_(file) {}

  Status Put(int64_t offset, std::string_view text) {
    constexpr size_t kPendingBytesMax = 8 << 20;
    if (offset != offset_ + static_cast<int64_t>(pending_.size()) ||
        pending_.size() > kPendingBytesMax) {
      CK_DO(Flush());
      offset_ = offset;
    }
    pending_ += text;
    return Done{};
  }

  Status Flush() {
    if (pending_.empty()) return Done{};
    CK_DO(file_.Write(offset_, std::as_bytes(std::span(pending_.data(), pending_.size()))));
    pending_.clear();
    return Done{};
  }

 private:
  OutputFile& file_;
  int64_t offset_ = 0;
  std::string pending_;
};

uint32_t CrcOfText(std::string_view text) {
  return Crc32(0, std::as_bytes(std::span(text.data(), text.size())));
}

}  // namespace

std::string TorchRootName(const std::filesystem::path& path) {
  const std::string name = path.filename().string();
  const std::string stem = name.substr(0, name.rfind('.'));
  return stem.empty() ? name : stem;  // ".pt" has no other name
}

TorchFileLayout TorchFileLayout::Plan(const Value& root, StringMemo memo, std::string root_name) {
  CHECK(!root_name.empty());
  CHECK(root_name.size() <= 1024, << root_name.size());  // names are counted in 16 bits
  TorchFileLayout plan;
  PickleOutput output = WritePickle(root, memo);
  plan.root_name_ = std::move(root_name);
  plan.pickle_ = std::move(output.bytes);
  plan.storages_ = std::move(output.storages);
  const Layout layout =
      LayOut(plan.root_name_, static_cast<int64_t>(plan.pickle_.size()), plan.storages_);
  for (size_t i = 0; i < plan.storages_.size(); ++i) {
    plan.storage_offsets_.push_back(layout.records()[kFirstStorage + i].payload_offset);
  }
  plan.file_bytes_ = layout.end() + DirectoryBytes(layout) + zip::kEnd64Bytes + zip::kLocatorBytes +
                     zip::kEndBytes;
  return plan;
}

Status TorchFileLayout::WriteFrame(OutputFile& file,
                                   std::span<const uint32_t> storage_crc32) const {
  CHECK(storage_crc32.size() == storages_.size(),
        << storage_crc32.size() << " sums for " << storages_.size() << " storages");
  const Layout layout = LayOut(root_name_, static_cast<int64_t>(pickle_.size()), storages_);
  const std::vector<Placed>& records = layout.records();
  std::vector<std::string> names;  // without root, of all records but the last
  std::vector<uint32_t> crcs;
  std::string directory;
  FrameWriter writer(file);
  for (size_t i = 0; i < records.size(); ++i) {
    const Placed& record = records[i];
    const std::string name = record.full_name.substr(root_name_.size() + 1);
    const bool is_storage = i >= kFirstStorage && i < kFirstStorage + storages_.size();
    std::string text;
    if (name == "data.pkl") text = pickle_;
    if (name == ".format_version") text = "1";
    if (name == ".storage_alignment") text = std::to_string(zip::kPayloadAlignment);
    if (name == "byteorder") text = "little";
    if (name == "version") text = "3\n";
    if (i + 1 == records.size()) text = SerializationId(names, crcs);
    const uint32_t crc = is_storage ? storage_crc32[i - kFirstStorage] : CrcOfText(text);
    CHECK(is_storage || static_cast<int64_t>(text.size()) == record.bytes, << name);
    CK_DO(writer.Put(record.header_offset, LocalHeader(record)));
    if (!is_storage) CK_DO(writer.Put(record.payload_offset, text));
    CK_DO(writer.Put(record.payload_offset + record.bytes, Descriptor(record, crc)));
    AppendCentral(directory, record, crc);
    names.push_back(name);
    if (record.bytes > 0) crcs.push_back(crc);
  }
  const int64_t directory_bytes = static_cast<int64_t>(directory.size());
  AppendEnd(directory, static_cast<int64_t>(records.size()), layout.end(), directory_bytes);
  CK_DO(writer.Put(layout.end(), directory));
  return writer.Flush();
}

Status WriteTorchFile(const std::filesystem::path& path, const Value& root, StringMemo memo,
                      const std::function<void(const Storage&, std::span<std::byte>)>& fill) {
  const TorchFileLayout layout = TorchFileLayout::Plan(root, memo, TorchRootName(path));
  CK_TRY(const std::shared_ptr<OutputFile> file, OutputFile::Create(path, layout.file_bytes()));
  const auto write = [&]() -> Status {
    std::vector<uint32_t> crcs;
    std::vector<std::byte> buffer;
    for (size_t i = 0; i < layout.storages().size(); ++i) {
      const Storage& storage = *layout.storages()[i];
      buffer.assign(static_cast<size_t>(storage.bytes()), std::byte{0});
      fill(storage, buffer);
      crcs.push_back(Crc32(0, buffer));
      CK_DO(file->Write(layout.StorageOffset(i), buffer));
    }
    CK_DO(layout.WriteFrame(*file, crcs));
    return file->Close(false);
  };
  Status written = write();
  if (!written.ok()) {
    std::error_code code;  // the first error is the one that counts
    std::filesystem::remove(path, code);
  }
  return written;
}

}  // namespace checkpoint

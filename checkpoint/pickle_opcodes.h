// Numbers and names of pickle opcodes. The names of refused ones stand here too, for error texts.
// Internal to the pickle reader and writer.
#pragma once

#include <cstdint>
#include <string_view>

namespace checkpoint::opcode {

inline constexpr uint8_t kMark = '(', kStop = '.', kPop = '0', kPopMark = '1', kDup = '2';
inline constexpr uint8_t kBinFloat = 'G', kBinInt = 'J', kBinInt1 = 'K', kBinInt2 = 'M',
                         kNone = 'N';
inline constexpr uint8_t kBinPersId = 'Q', kReduce = 'R', kBinString = 'T', kShortBinString = 'U';
inline constexpr uint8_t kBinUnicode = 'X', kAppend = 'a', kBuild = 'b', kGlobal = 'c', kDict = 'd';
inline constexpr uint8_t kAppends = 'e', kBinGet = 'h', kLongBinGet = 'j', kList = 'l';
inline constexpr uint8_t kBinPut = 'q', kLongBinPut = 'r', kSetItem = 's', kTuple = 't';
inline constexpr uint8_t kSetItems = 'u', kEmptyDict = '}', kEmptyList = ']', kEmptyTuple = ')';
inline constexpr uint8_t kProto = 0x80, kNewObj = 0x81, kTuple1 = 0x85, kTuple2 = 0x86;
inline constexpr uint8_t kTuple3 = 0x87, kNewTrue = 0x88, kNewFalse = 0x89, kLong1 = 0x8a;
inline constexpr uint8_t kLong4 = 0x8b, kBinBytes = 'B', kShortBinBytes = 'C';
inline constexpr uint8_t kShortBinUnicode = 0x8c, kBinUnicode8 = 0x8d, kBinBytes8 = 0x8e;
inline constexpr uint8_t kEmptySet = 0x8f, kAddItems = 0x90, kFrozenSet = 0x91;
inline constexpr uint8_t kStackGlobal = 0x93, kMemoize = 0x94, kFrame = 0x95;

struct RefusedOpcode {
  uint8_t code;
  std::string_view name;
};

// Known to Python, never written by torch.save or DCP; some of them run code or reach outside the
// file by design.
inline constexpr RefusedOpcode kRefused[] = {
    {'F', "FLOAT"},
    {'I', "INT"},
    {'L', "LONG"},
    {'P', "PERSID"},
    {'S', "STRING"},
    {'V', "UNICODE"},
    {'g', "GET"},
    {'p', "PUT"},
    {'i', "INST"},
    {'o', "OBJ"},
    {0x82, "EXT1"},
    {0x83, "EXT2"},
    {0x84, "EXT4"},
    {0x92, "NEWOBJ_EX"},
    {0x96, "BYTEARRAY8"},
    {0x97, "NEXT_BUFFER"},
    {0x98, "READONLY_BUFFER"},
};

}  // namespace checkpoint::opcode

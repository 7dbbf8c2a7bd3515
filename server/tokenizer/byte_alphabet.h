// The alphabet of byte-level vocabularies: every byte is written as one printable character.
#pragma once

#include <string>
#include <string_view>

namespace runahead {

// The character, in UTF-8, that stands for `byte` in the vocabulary of a byte-level model.
std::string ByteToAlphabet(unsigned char byte);

// The bytes that `token` stands for. A token with a character outside the alphabet stands for itself.
std::string AlphabetToBytes(std::string_view token);

}  // namespace runahead

// The key of this user: 256 random bits in a file of theirs, made on first use.
// What it proves: whoever knows it may read that file, so acts for this user.
#pragma once

#include "runtime/core/Status.h"

#include <cstddef>
#include <string>

namespace merak::trust {

// MERAK_KEY, $XDG_CONFIG_HOME/merak/key or $HOME/.config/merak/key; empty where
// none of these is set.
std::string userKeyPath();

// The key; a missing one is made, by one of all processes that try at once.
// Errors: there is no such place, it cannot be read or written, holds something
// else, or others may read it.
Result<std::string> userKey();

// The text of a file of at most 4 KiB, without white space at its end.
Result<std::string> readShort(const std::string &path);
// The same of a file that nobody but its owner may read or write.
Result<std::string> readSecret(const std::string &path);

// Whether a text is a secret nobody guesses: at least 32 hexadecimal digits.
constexpr size_t kLeastDigits = 32;
bool isSecret(const std::string &text);

} // namespace merak::trust

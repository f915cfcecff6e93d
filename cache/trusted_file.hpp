// TrustedFile: files and folders that code may be loaded from, because nobody else can write them.
#pragma once

#include <sys/stat.h>

#include <string>
#include <string_view>

#include "generator/status.hpp"

namespace quarterturn {

/// Owned by this user or root, and nobody else may write; not_ours, with the remedy, otherwise.
Status check_trusted(const struct stat& info, const std::string& path);

/// The bytes of an ordinary, trusted file; symbolic links are not followed. miss: there is none.
Result<std::string> read_trusted(const std::string& path);

/// A new file of mode 0600, durable; an existing one is never overwritten.
Status create_durably(const std::string& path, std::string_view bytes);

/// Adds bytes to a file, gives it mode 0600 and makes it durable.
Status append_durably(const std::string& path, std::string_view bytes);

/// A fresh folder of mode 0700 below TMPDIR, for when the usual one cannot be used.
Result<std::string> make_private_folder();

}  // namespace quarterturn

// Owns: the open manifest of a pack that is made or mended: its lock, and its next generation.
// Keeps: a generation overwrites the older slot only, so that one of the two is whole at every moment; nobody else
// works on the pack meanwhile.
#pragma once

#include <string>

#include "base/status.h"
#include "store/files.h"
#include "store/pack.h"

namespace sluice::store {

class ManifestFile {
  public:
    // Locked. Error if it was renamed or removed meanwhile, or is to be created and exists.
    static Result<ManifestFile> open(Files& files, const std::string& path, bool create);

    [[nodiscard]] const std::string& path() const { return path_; }
    [[nodiscard]] int fd() const { return out_.fd(); }
    [[nodiscard]] uint64_t size() const;
    // Durably. The manifest gets the next generation.
    Status commit(Manifest& manifest);
    // Both slots say the same then, so that either may be lost.
    Status commit_both(Manifest& manifest);
    // Empties the file and makes room for both slots of a new manifest.
    Status start(const Manifest& manifest);

  private:
    ManifestFile(OutputFile out, std::string path) : out_(std::move(out)), path_(std::move(path)) {}
    OutputFile out_;
    std::string path_;
};

}  // namespace sluice::store

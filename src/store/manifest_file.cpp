#include "store/manifest_file.h"

#include <fcntl.h>
#include <sys/stat.h>

namespace sluice::store {

Result<ManifestFile> ManifestFile::open(Files& files, const std::string& path, bool create) {
    auto out = OutputFile::open(files, path, create ? O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW : O_RDWR);
    if (!out.ok()) return out.status();
    if (Status s = out->lock(); !s.ok()) return s;
    struct stat ours {
    }, there{};
    if (::fstat(out->fd(), &ours) != 0 || ::stat(path.c_str(), &there) != 0 || ours.st_dev != there.st_dev ||
        ours.st_ino != there.st_ino)
        return error(Code::unsupported, "another process has just finished {}; run this again", path);
    return ManifestFile(std::move(*out), path);
}

uint64_t ManifestFile::size() const {
    struct stat st {};
    return ::fstat(out_.fd(), &st) == 0 ? static_cast<uint64_t>(st.st_size) : 0;
}

Status ManifestFile::start(const Manifest& manifest) {
    if (Status s = out_.resize(0); !s.ok()) return s;
    return out_.resize(2 * encode_manifest(manifest).size());
}

Status ManifestFile::commit(Manifest& manifest) {
    Manifest next = manifest;
    ++next.generation;
    const std::string bytes = encode_manifest(next);
    if (Status s = out_.write(std::as_bytes(std::span(bytes.data(), bytes.size())), next.generation % 2 * bytes.size());
        !s.ok())
        return s;
    if (Status s = out_.sync(); !s.ok()) return s;
    manifest.generation = next.generation;
    return {};
}

Status ManifestFile::commit_both(Manifest& manifest) {
    if (Status s = commit(manifest); !s.ok()) return s;
    return commit(manifest);
}

}  // namespace sluice::store

#include <unistd.h>

#include <optional>

#include "base/crc32c.h"
#include "base/log.h"
#include "store/files.h"
#include "store/pack.h"
#include "store/record_store.h"
#include "store/sums.h"

namespace sluice::store {
namespace {

// What may be done about a model whose experts are not in its files.
Status skeleton_error(const std::string& gguf, const std::string& pack, const Status& pack_trouble) {
    std::string help;
    if (exists(partial_path(pack))) {
        help = fmt::format("sluice pack --reclaim was interrupted: run it again, or sluice unpack --in-place {}", gguf);
    } else if (pack_trouble.ok() || pack_trouble.code() == Code::not_found) {
        help = fmt::format(
            "if sluice pack --reclaim took them out, put their pack back beside it, or name it (run: --store PACK; "
            "verify, repair and unpack: --pack PACK); without one, copy or download the file again, or sluice repair "
            "{} --from COPY",
            gguf);
    } else {
        help = fmt::format(
            "and its pack cannot be used: {}; if sluice unpack --in-place was interrupted, run it again, else sluice "
            "repair {}",
            pack_trouble.message(), gguf);
    }
    const char* sign = exists(guard_path(gguf)) ? " (so says the note beside it; remove that if the file is new)" : "";
    return error(Code::corrupt, "{} has holes where its experts should be{}, so nothing is computed from it: {}", gguf,
                 sign, help);
}

// Whether every matrix that lies in a hole of the model's files has the checksum that it should have: zeros may be what
// the model is made of.
bool holes_are_right(const Holder& holder, const model::Geometry& geometry, const std::vector<uint32_t>& sums) {
    size_t i = 0;
    for (size_t s = 0; s < geometry.sets.size(); ++s) {
        for (uint32_t e = 0; e < geometry.sets[s].n_expert; ++e) {
            for (size_t c = 0; c < geometry.sets[s].tensors.size(); ++c, ++i) {
                const Place& p = holder.places[s][c];
                const uint64_t bytes = geometry.sets[s].tensors[c].bytes_per_expert;
                const uint64_t at = p.offset + e * p.stride;
                if (!has_hole(p.file->fd(), at, bytes)) continue;
                const auto plain = io::File::open(p.file->path(), io::Access::buffered);
                std::vector<std::byte> read(bytes);
                if (!plain.ok() ||
                    ::pread(plain->fd(), read.data(), bytes, static_cast<off_t>(at)) != static_cast<ssize_t>(bytes) ||
                    crc32c(read) != sums[i])
                    return false;
            }
        }
    }
    return true;
}

// One opening of a store, step by step.
class Opener {
  public:
    Opener(const model::GgufIndex& index, const model::Geometry& geometry, const OpenOptions& options,
           std::string* note)
        : index_(index), geometry_(geometry), options_(options), note_(note), gguf_path_(index.files()[0].path) {}

    Result<RecordStore> run() {
        skeleton_ = experts_taken_out(index_, geometry_);
        if (Status s = open_packed(); !s.ok()) return s;
        if (Status s = open_own(); !s.ok()) return s;
        if (!pack_ && !own_) return skeleton_error(gguf_path_, pack_path(index_), pack_trouble_);
        const bool pack_first = pack_ && (named() || !own_);
        if (pack_) pack_->holder.shares = pack_first;
        if (own_) own_->shares = !pack_first;
        RecordStore store(geometry_, pack_first ? std::move(pack_->holder) : std::move(*own_));
        if (pack_first && own_) store.add_holder(std::move(*own_));
        if (!pack_first && pack_) store.add_holder(std::move(pack_->holder));
        std::vector<uint32_t> sums = pack_ ? pack_->sums : std::move(sums_);
        if (Status s = add_mirrors(store, sums); !s.ok()) return s;
        if (!sums.empty()) store.set_checksums(std::move(sums));
        return store;
    }

  private:
    // A pack was asked for.
    [[nodiscard]] bool named() const { return options_.store != "auto" && options_.store != "gguf"; }
    Result<const Identity*> identity() {
        if (!identity_) {
            auto found = identify(index_, geometry_);
            if (!found.ok()) return found.status();
            identity_.emplace(std::move(*found));
        }
        return &*identity_;
    }

    Status open_packed() {
        const std::string path = named() && options_.store != "pack" ? options_.store : pack_path(index_);
        if (!named() && !exists(path)) return {};
        const auto who = identity();
        if (!who.ok()) return who.status();
        std::string note;
        auto pack = open_pack(path, **who, options_.access, &note);
        if (!pack.ok()) {
            if (named()) return pack.status().within("--store");
            pack_trouble_ = pack.status();
            if (!skeleton_ && pack_trouble_.code() != Code::conflict)
                log(LogLevel::warn, "the pack is not used: {}", pack.status().message());
            return {};
        }
        if (note_ != nullptr && note_->empty()) *note_ = note;
        pack_.emplace(std::move(*pack));
        return {};
    }

    Status open_own() {
        // Its experts are known to be elsewhere, or about to be.
        if (pack_ && (pack_->reclaimed || skeleton_)) {
            if (options_.store == "gguf") {
                return error(Code::invalid_argument,
                             "--store gguf: the experts were taken out of {0}; they are in {1} (sluice unpack "
                             "--in-place {0} brings them back)",
                             gguf_path_, pack_->holder.name);
            }
            return {};
        }
        auto own = open_gguf(index_, geometry_, options_.access, pack_ ? nullptr : note_);
        if (!own.ok()) {
            if (!pack_) return own.status();
            log(LogLevel::warn, "there is no reserve for the pack: {}", own.status().message());
            return {};
        }
        auto sums = load_sums(index_, geometry_);
        if (sums.ok()) sums_ = std::move(*sums);
        if (Status s = settle(sums.status()); !s.ok()) return s;
        if (skeleton_ && (sums_.empty() || !holes_are_right(*own, geometry_, sums_))) return {};
        if (pack_ && !sums_.empty() && sums_ != pack_->sums) {
            log(LogLevel::warn,
                "the pack is not used: its checksums and those in {} differ, so one of them was made from damaged "
                "experts; sluice verify {} tells more",
                sums_path(index_), gguf_path_);
            if (named())
                return error(Code::corrupt, "--store {}: its checksums and those in {} differ", options_.store,
                             sums_path(index_));
            pack_.reset();
        }
        own_.emplace(std::move(*own));
        return {};
    }

    // Checksums or a pack of other contents than the model has now are stale, or the model is damaged. What else agrees
    // with the model vouches for it; if nothing does, nothing is computed.
    Status settle(const Status& sums) {
        const bool pack_differs = pack_trouble_.code() == Code::conflict;
        const bool sums_differ = sums.code() == Code::conflict;
        if (!skeleton_ && !pack_ && !sums.ok() && (pack_differs || sums_differ)) {
            return error(Code::conflict,
                         "{}. If the model was replaced on purpose, remove {}; if not, it is damaged: sluice repair {} "
                         "mends it from a pack, or with --from from a copy",
                         pack_differs ? pack_trouble_.message() : sums.message(),
                         pack_differs ? pack_path(index_) + " and what belongs to it" : sums_path(index_), gguf_path_);
        }
        if (pack_differs && !skeleton_) log(LogLevel::warn, "the pack is not used: {}", pack_trouble_.message());
        if (!sums.ok() && sums.code() != Code::not_found && !skeleton_)
            log(LogLevel::warn, "checksums are not used: {}", sums.message());
        return {};
    }

    Status add_mirrors(RecordStore& store, std::vector<uint32_t>& sums) {
        for (const std::string& path : options_.mirrors) {
            if (store.n_holders() == kMaxHolders)
                return error(Code::invalid_argument, "there are too many copies of the model; {} is the most",
                             kMaxHolders);
            auto mirror = looks_like_manifest(path) ? pack_mirror(path, sums) : gguf_mirror(path);
            if (!mirror.ok()) return mirror.status().within("--mirror " + path);
            store.add_holder(std::move(*mirror));
        }
        return {};
    }

    Result<Holder> pack_mirror(const std::string& path, std::vector<uint32_t>& sums) {
        const auto who = identity();
        if (!who.ok()) return who.status();
        auto pack = open_pack(path, **who, options_.access, nullptr);
        if (!pack.ok()) return pack.status();
        if (sums.empty()) sums = pack->sums;
        if (sums != pack->sums) return error(Code::corrupt, "its checksums are not those of the model");
        pack->holder.shares = true;
        return std::move(pack->holder);
    }

    Result<Holder> gguf_mirror(const std::string& path) {
        auto index = model::GgufIndex::open(path);
        if (!index.ok()) return index.status();
        auto geometry = model::derive_geometry(*index);
        if (!geometry.ok()) return geometry.status();
        if (is_skeleton(*index, *geometry)) return error(Code::corrupt, "it has holes where its experts should be");
        const auto copy = describe(*index, *geometry);
        if (!copy.ok()) return copy.status();
        const auto who = identity();
        if (!who.ok()) return who.status();
        // The digest of the whole model, also when its own files are no longer whole.
        if (!same_shape(*copy, (*who)->source) || copy->digest != (pack_ ? pack_->digest : (*who)->source.digest))
            return error(Code::unsupported, "it is no copy of {}", gguf_path_);
        // The same file twice would take bandwidth from itself, and save nothing when it fails.
        for (const model::FileEntry& mine : index_.files()) {
            for (const model::FileEntry& theirs : index->files()) {
                if (mine.device == theirs.device && mine.inode == theirs.inode)
                    return error(Code::invalid_argument, "it is {} itself, not a copy of it", mine.path);
            }
        }
        auto holder = open_gguf(*index, *geometry, options_.access, nullptr);
        if (holder.ok()) holder->shares = true;
        return holder;
    }

    const model::GgufIndex& index_;
    const model::Geometry& geometry_;
    const OpenOptions& options_;
    std::string* note_;
    std::string gguf_path_;
    bool skeleton_ = false;
    std::optional<Identity> identity_;
    std::optional<PackHolder> pack_;
    Status pack_trouble_;
    std::optional<Holder> own_;
    std::vector<uint32_t> sums_;  // from beside the model
};

}  // namespace

Result<RecordStore> RecordStore::open(const model::GgufIndex& index, const model::Geometry& geometry,
                                      const OpenOptions& options, std::string* note) {
    return Opener(index, geometry, options, note).run();
}

}  // namespace sluice::store

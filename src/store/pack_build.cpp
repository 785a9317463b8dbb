#include "store/pack_build.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "model/digest.h"
#include "store/manifest_file.h"
#include "store/sums.h"

namespace sluice::store {
namespace {

Status not_ours(const std::string& path) {
    return error(Code::invalid_argument, "{} exists and is no part of this pack: move it away, or choose another --out",
                 path);
}

// Such as links: what is behind them is not ours to write.
bool plain_file(const std::string& path) {
    struct stat st {};
    return ::lstat(path.c_str(), &st) == 0 && S_ISREG(st.st_mode);
}

// By which a change of a model's file is noticed.
struct Stamp {
    uint64_t device = 0, inode = 0, size = 0;
    int64_t modified = 0;
    bool operator==(const Stamp&) const = default;
};

Result<Stamp> stamp_of(const std::string& path) {
    struct stat st {};
    if (::stat(path.c_str(), &st) != 0)
        return error(Code::io_error, "cannot look at {}: {}", path, std::strerror(errno));
    return Stamp{st.st_dev, st.st_ino, static_cast<uint64_t>(st.st_size),
                 int64_t{st.st_mtim.tv_sec} * 1'000'000'000 + st.st_mtim.tv_nsec};
}

std::string guard_text(const std::string& gguf, const std::string& pack, const std::string& way_back) {
    return fmt::format(
        "The experts were taken out of\n  {0}\nto free its room on the drive; they are in\n  {1}\nThe file keeps its "
        "size, but there are zeros where experts were. Sluice runs the model from both. Other programs would load the "
        "file and answer nonsense.\n\n  {2}\n\nbrings the file back, byte for byte, and "
        "removes this note. Keep the pack until then.\n",
        gguf, pack, way_back);
}

// The whole blocks of the drive within a tensor's experts.
Piece inner(const model::ExpertSet& set, const model::ExpertTensor& t) {
    const uint64_t begin = align_up(t.offset, kPackAlign);
    const uint64_t end = align_down(t.offset + t.bytes_per_expert * set.n_expert, kPackAlign);
    return {t.file, begin, end > begin ? end - begin : 0};
}

class Packer {
  public:
    Packer(Files& files, const model::GgufIndex& index, const model::Geometry& geometry, io::Engine& engine,
           const PackJob& job)
        : files_(files), index_(index), geometry_(geometry), reader_(engine), job_(job) {}

    Result<PackDone> run() {
        auto identity = identify(index_, geometry_);
        if (!identity.ok()) return identity.status();
        identity_ = std::move(*identity);
        out_ = job_.out.empty() ? pack_path(index_) : job_.out;
        if (Status s = names_are_free(); !s.ok()) return s;
        if (Status s = open_manifest(); !s.ok()) return s;
        Status s = prepare();
        if (s.ok() && fresh_) s = begin();
        if (!s.ok()) {
            // Nothing was made but an empty manifest.
            if (created_ && !begun_) (void)files_.remove(manifest_file_->path());
            return s;
        }
        if (s = reclaim_found(); !s.ok()) return s;
        while (manifest_.done < parts_->n_steps()) {
            if (s = step(manifest_.done); !s.ok()) return s;
        }
        if (s = finish(); !s.ok()) return s;
        done_.path = out_;
        done_.shape = manifest_.shape;
        for (const uint64_t bytes : map_.map.file_bytes) done_.bytes += bytes;
        done_.files = static_cast<uint32_t>(map_.map.file_bytes.size());
        done_.steps = parts_->n_steps();
        done_.had_sums = !expected_.empty();
        return done_;
    }

  private:
    static bool same_file(const std::string& path, const model::FileEntry& f) {
        const auto stamp = stamp_of(path);
        return stamp.ok() && stamp->device == f.device && stamp->inode == f.inode;
    }

    // No name that is about to be written is one of the model's, by whatever link.
    Status names_are_free() const {
        std::vector<std::string> names{out_, partial_path(out_)};
        for (uint32_t f = 0; name_is_taken(data_path(out_, f)); ++f) names.push_back(data_path(out_, f));
        for (const std::string& name : names) {
            for (const model::FileEntry& f : index_.files()) {
                if (same_file(name, f))
                    return error(Code::invalid_argument, "{} is the model itself; a pack needs a name of its own",
                                 name);
            }
        }
        return {};
    }

    // Takes the manifest that is there, whole or partial, or decides on a new one.
    Status open_manifest() {
        complete_ = name_is_taken(out_);
        const std::string path = complete_ ? out_ : partial_path(out_);
        created_ = !name_is_taken(path);
        if (!complete_ && !created_ && !plain_file(path)) return not_ours(path);
        auto file = ManifestFile::open(files_, path, created_);
        if (!file.ok()) return file.status();
        manifest_file_.emplace(std::move(*file));
        Status s = adopt(path);
        if (created_ && !s.ok()) (void)files_.remove(path);
        return s;
    }

    Status adopt(const std::string& path) {
        bool data = false;
        for (uint32_t f = 0; f < 2; ++f) data = data || name_is_taken(data_path(out_, f));
        auto read = read_manifest(path);
        // Before its first generation was durable, no data file was made.
        fresh_ = !complete_ && !read.ok() && !data;
        if (!read.ok() && !complete_) {
            if (!begun_manifest(path)) return not_ours(path);
            if (data && manifest_file_->size() == 0)
                return not_ours(data_path(out_, name_is_taken(data_path(out_, 0)) ? 0 : 1));
        }
        if (!fresh_) {
            if (!read.ok()) {
                return error(read.status().code(),
                             "{} (to make the pack anew, remove it and its data files -- unless "
                             "there is a {} beside the model, for then the experts are nowhere else)",
                             read.status().message(), guard_path(index_.files()[0].path));
            }
            manifest_ = std::move(read->manifest);
            if (Status s = belongs(manifest_, identity_); !s.ok()) return s.within(path);
            if ((job_.layout && *job_.layout != manifest_.shape.layout) ||
                (job_.split && *job_.split != manifest_.shape.split)) {
                return error(Code::invalid_argument,
                             "{} was begun with --layout {}{}: leave these options out to go on with it, or remove it "
                             "and its data files",
                             path, layout_name(manifest_.shape.layout),
                             manifest_.shape.split != 0 ? fmt::format(" --split {}", manifest_.shape.split) : "");
            }
        } else {
            if (identity_.skeleton) {
                return error(Code::unsupported,
                             "{} has holes where its experts should be: it was reclaimed, copied or downloaded in part",
                             index_.files()[0].path);
            }
            manifest_.shape.layout = job_.layout.value_or(Layout::layer);
            manifest_.shape.split = job_.split.value_or(0);
            // A reclaimed model's files still have it, and room is what reclaiming is about.
            manifest_.shape.keeps_dense = !job_.reclaim;
            manifest_.source = identity_.source;
            auto digest = model::dense_digest(index_, geometry_);
            if (!digest.ok()) return digest.status();
            manifest_.dense_digest = std::move(*digest);
        }
        auto parts = Parts::of(manifest_.source);
        if (!parts.ok()) return parts.status();
        parts_.emplace(std::move(*parts));
        auto map = map_pack(*parts_, manifest_.shape);
        if (!map.ok()) return map.status();
        map_ = std::move(*map);
        if (fresh_) manifest_.sums.assign(parts_->count(), 0);
        done_.found = manifest_.done;
        data_.resize(map_.map.file_bytes.size());
        for (uint32_t f = 0; f < data_.size() && !complete_; ++f) {
            const std::string name = data_path(out_, f);
            if (!name_is_taken(name) || (!fresh_ && begun_data(f))) continue;
            if (!manifest_.reclaimed) return not_ours(name);
            return error(Code::corrupt,
                         "{} is another file than this pack's, or damaged at its beginning: bring the right one back; "
                         "what it holds was taken out of the model",
                         name);
        }
        return {};
    }

    // What an earlier call may have left before it could write all of the first slot.
    bool begun_manifest(const std::string& path) const {
        const auto bytes = read_whole(path, kMaxManifestBytes);
        if (!bytes.ok()) return false;
        if (bytes->empty() || begun_slots(*bytes)) return true;
        return bytes->size() % (2 * kPackAlign) == 0 && all_hole(manifest_file_->fd(), 0, bytes->size());
    }

    // Our header, or what an earlier call may have left before it could write all of it.
    bool begun_data(uint32_t file) const {
        const std::string name = data_path(out_, file);
        if (!plain_file(name)) return false;
        const int fd = ::open(name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
        if (fd < 0) return false;
        const std::string ours = data_header(manifest_, map_, file);
        std::string head(ours.size() + 1, '\0');
        const ssize_t n = ::pread(fd, head.data(), head.size(), 0);
        ::close(fd);
        if (n < 0) return false;
        head.resize(static_cast<size_t>(n));
        if (head.starts_with(ours)) return true;
        if (head.size() > ours.size()) return false;
        for (size_t i = 0; i < head.size(); ++i) {
            if (head[i] != 0 && head[i] != ours[i]) return false;
        }
        return true;
    }

    // Opens the model and looks whether all of it can be done, before any of it is.
    Status prepare() {
        std::vector<std::string> paths;
        for (const model::FileEntry& f : index_.files()) paths.push_back(f.path);
        gguf_ = open_copy(paths[0], parts_->gguf(), paths, job_.access);
        for (size_t f = 0; f < paths.size(); ++f) {
            if (!gguf_.trouble[f].ok()) return gguf_.trouble[f];
            const model::FileEntry& entry = index_.files()[f];
            if (gguf_.files[f]->device() != entry.device || gguf_.files[f]->inode() != entry.inode)
                return error(Code::io_error, "{} was replaced while it was being opened; try again", paths[f]);
            auto stamp = stamp_of(paths[f]);
            if (!stamp.ok()) return stamp.status();
            stamps_.push_back(*stamp);
        }
        // What an earlier call copied may be of an older file.
        std::vector<int64_t> now;
        for (const Stamp& s : stamps_) now.push_back(s.modified);
        if (!fresh_ && !complete_ && !manifest_.reclaimed && now != manifest_.modified) {
            manifest_.done = 0;
            done_.found = 0;
            std::fill(manifest_.sums.begin(), manifest_.sums.end(), 0);
        }
        manifest_.modified = now;
        load_expected();
        if (job_.reclaim) {
            for (size_t f = 0; f < paths.size(); ++f) {
                auto out = OutputFile::open(files_, paths[f], O_RDWR);
                if (!out.ok()) return out.status();
                // Behind the end there is nothing to lose.
                const uint64_t end = align_up(index_.files()[f].size, kPackAlign);
                if (Status s = out->punch(end, kPackAlign); !s.ok())
                    return s.code() == Code::unsupported
                               ? error(Code::unsupported, "{}; pack it without --reclaim", s.message())
                               : s;
                sources_.push_back(std::move(*out));
                // It counts as a change all the same.
                auto stamp = stamp_of(paths[f]);
                if (!stamp.ok()) return stamp.status();
                stamps_[f] = *stamp;
                manifest_.modified[f] = stamp->modified;
            }
        }
        for (uint32_t s = manifest_.done; s < parts_->n_steps(); ++s)
            total_ += parts_->step_bytes(s) * (job_.reclaim && s > 0 ? expected_.empty() ? 3 : 2 : 1);
        return enough_room();
    }

    // Checksums made earlier, if they are of these contents. They may be from before a layer was taken out.
    void load_expected() {
        const auto bytes = read_whole(sums_path(index_), kMaxSumsBytes);
        if (!bytes.ok()) return;
        auto sums = parse_sums(*bytes);
        if (sums.ok() && same_model(sums->source, manifest_.source)) expected_ = std::move(sums->values);
    }

    Status enough_room() {
        uint64_t free = 0;
        if (const int e = files_.free_bytes(out_, free); e != 0)
            return error(Code::io_error, "cannot look at the drive of {}: {}", out_, std::strerror(e));
        struct stat st {};
        const std::string& beside = manifest_file_->path();
        const bool one_drive = ::stat(beside.c_str(), &st) == 0 && st.st_dev == index_.files()[0].device;
        uint64_t need = 0, most = 0;
        if (fresh_) need = 2 * encode_manifest(manifest_).size();
        for (uint32_t s = manifest_.done; s < parts_->n_steps(); ++s) {
            need += align_up(map_.steps[s].bytes, kPackAlign) + kPackAlign;
            most = std::max(most, need);
            if (!job_.reclaim || !one_drive || s == 0) continue;
            const model::ExpertSet& set = parts_->source().sets[s - 1];
            for (const model::ExpertTensor& t : set.tensors) need -= std::min(need, inner(set, t).bytes);
        }
        if (most <= free) return {};
        return error(Code::io_error, "the drive of {} has {} free, and the pack needs {} more{}", out_,
                     human_bytes(free), human_bytes(most),
                     job_.reclaim || !one_drive ? "" : " (--reclaim needs little more than one layer)");
    }

    Status begin() {
        if (Status s = manifest_file_->start(manifest_); !s.ok()) return s;
        begun_ = true;
        if (Status s = manifest_file_->commit(manifest_); !s.ok()) return s;
        return sync_names();
    }

    Status sync_names() {
        const int e = files_.sync_directory(out_);
        return e == 0 ? Status() : error(Code::io_error, "cannot make {} durable: {}", out_, std::strerror(e));
    }

    Result<OutputFile*> data(uint32_t file) {
        if (!data_[file]) {
            // adopt() has looked at what is there; what came since is not ours.
            const std::string name = data_path(out_, file);
            const bool there = name_is_taken(name);
            if (there && !begun_data(file)) return not_ours(name);
            auto out = OutputFile::open(files_, name, O_RDWR | O_NOFOLLOW | (there ? 0 : O_CREAT | O_EXCL));
            if (!out.ok()) return out.status();
            const std::string header = data_header(manifest_, map_, file);
            if (Status s = out->write(std::as_bytes(std::span(header.data(), header.size())), 0); !s.ok()) return s;
            // By it the next call knows the file, however large it was made.
            if (Status s = out->sync(); !s.ok()) return s;
            if (Status s = sync_names(); !s.ok()) return s;
            data_[file].emplace(std::move(*out));
        }
        return &*data_[file];
    }

    Status advance(uint64_t bytes) {
        so_far_ += bytes;
        if (job_.progress && !job_.progress(so_far_, total_)) return error(Code::cancelled, "stopped");
        return {};
    }

    // Copies one step, makes it durable, and says so in the manifest.
    Status step(uint32_t s) {
        const Piece& room = map_.steps[s];
        const bool writes = s > 0 || manifest_.shape.keeps_dense;
        OutputFile* out = nullptr;
        if (writes) {
            auto opened = data(room.file);
            if (!opened.ok()) return opened.status();
            out = *opened;
            if (room.bytes > 0) {
                if (Status st = out->allocate(room.offset, align_up(room.bytes, kPackAlign)); !st.ok()) return st;
            }
            if (Status st = out->resize(align_up(room.offset + room.bytes, kPackAlign)); !st.ok()) return st;
        }
        for (PartId p = parts_->first(s); p < parts_->first(s + 1); ++p) {
            auto bytes = source_part(p);
            if (!bytes.ok()) return bytes.status();
            manifest_.sums[p] = crc32c(*bytes);
            if (writes) {
                if (Status st = out->write(*bytes, parts_->pieces(map_.map, p).front().offset); !st.ok()) return st;
            }
            if (Status st = advance(parts_->bytes(p)); !st.ok()) return st;
        }
        if (writes) {
            if (Status st = out->sync(); !st.ok()) return st;
        }
        if (Status st = unchanged(); !st.ok()) return st;
        ++manifest_.done;
        if (!job_.reclaim) return manifest_file_->commit(manifest_);
        // What is about to be the only place of these bytes is known by both slots.
        if (Status st = manifest_file_->commit_both(manifest_); !st.ok()) return st;
        return s == 0 ? Status() : reclaim(s, !expected_.empty());
    }

    Result<std::span<const std::byte>> source_part(PartId p) {
        const Parts::At a = parts_->at(p);
        if (a.dense) return reader_.read(gguf_, *parts_, p);
        if (expected_.empty()) {
            const Piece piece = parts_->pieces(gguf_.map, p).front();
            if (has_hole(gguf_.files[piece.file]->fd(), piece.offset, piece.bytes)) {
                return error(Code::corrupt,
                             "{}: {} are a hole in the file; without checksums (sluice verify --write) nobody can tell "
                             "whether they should be zeros",
                             parts_->name(p), parts_->place(gguf_.map, gguf_.paths, p));
            }
            return reader_.read(gguf_, *parts_, p);
        }
        const uint32_t sum = expected_[p - parts_->first(1)];
        auto bytes = reader_.read_checked(gguf_, *parts_, p, sum);
        if (!bytes.ok()) bytes = reader_.read_checked(gguf_, *parts_, p, sum);
        if (!bytes.ok())
            return error(bytes.status().code(), "{}; sluice repair {} --from COPY can mend it",
                         bytes.status().message(), gguf_.name);
        return bytes;
    }

    Status unchanged() {
        for (size_t f = 0; f < stamps_.size(); ++f) {
            const auto now = stamp_of(gguf_.paths[f]);
            if (!now.ok()) return now.status();
            if (!(*now == stamps_[f])) {
                return error(Code::io_error, "{} was changed while it was being packed; run this again",
                             gguf_.paths[f]);
            }
        }
        return {};
    }

    // --- giving back

    // Layers that earlier calls packed.
    Status reclaim_found() {
        if (!job_.reclaim) return {};
        for (uint32_t s = 1; s < manifest_.done; ++s) {
            bool gone = manifest_.reclaimed;
            const model::ExpertSet& set = parts_->source().sets[s - 1];
            for (const model::ExpertTensor& t : set.tensors) {
                const Piece range = inner(set, t);
                gone = gone && (range.bytes == 0 || all_hole(sources_[t.file].fd(), range.offset, range.bytes));
            }
            if (gone) continue;
            total_ += 2 * parts_->step_bytes(s);
            if (Status st = reclaim(s, false); !st.ok()) return st;
        }
        return {};
    }

    // Takes a layer out of the model's files. The pack has it, durably. `compared`: what was read of the model for that
    // was found right.
    Status reclaim(uint32_t s, bool compared) {
        const Copy pack = open_copy(out_, map_.map, data_paths(out_, map_), job_.access);
        if (Status st = compare(s, pack); !st.ok()) return st.within("the pack cannot be read back");
        // What was read once may have been misread. A layer that an earlier call began to take out cannot be asked.
        const model::ExpertSet& set = parts_->source().sets[s - 1];
        const bool begun = std::any_of(set.tensors.begin(), set.tensors.end(), [&](const model::ExpertTensor& t) {
            const Piece range = inner(set, t);
            return manifest_.reclaimed && has_hole(sources_[t.file].fd(), range.offset, range.bytes);
        });
        if (!compared && !begun) {
            if (Status st = compare(s, gguf_); !st.ok())
                return st.within("the model and its pack differ (sluice verify tells where)");
        }
        if (!manifest_.reclaimed) {
            manifest_.reclaimed = true;
            if (Status st = manifest_file_->commit_both(manifest_); !st.ok()) return st;
        }
        if (Status st = guard(); !st.ok()) return st;
        if (Status st = unchanged(); !st.ok()) return st;
        return punch(set);
    }

    Status compare(uint32_t s, const Copy& copy) {
        for (PartId p = parts_->first(s); p < parts_->first(s + 1); ++p) {
            const auto bytes = reader_.read_checked(copy, *parts_, p, manifest_.sums[p]);
            if (!bytes.ok()) return bytes.status();
            if (Status st = advance(parts_->bytes(p)); !st.ok()) return st;
        }
        return {};
    }

    Status guard() {
        if (guarded_) return {};
        for (const std::string& path : gguf_.paths) {
            const std::string text = guard_text(path, out_, way_back(index_, out_));
            const auto bytes = std::as_bytes(std::span(text.data(), text.size()));
            if (Status st = replace_file(files_, guard_path(path), bytes); !st.ok()) return st;
        }
        guarded_ = true;
        return {};
    }

    Status punch(const model::ExpertSet& set) {
        for (const model::ExpertTensor& t : set.tensors) {
            const Piece range = inner(set, t);
            if (range.bytes == 0) continue;
            if (Status st = sources_[t.file].punch(range.offset, range.bytes); !st.ok()) return st;
            if (Status st = sources_[t.file].sync(); !st.ok()) return st;
            done_.given_back += range.bytes;
            auto stamp = stamp_of(gguf_.paths[t.file]);
            if (!stamp.ok()) return stamp.status();
            stamps_[t.file] = *stamp;
            manifest_.modified[t.file] = stamp->modified;
        }
        return {};
    }

    Status finish() {
        if (complete_) return {};
        // Both slots say that it is complete, so that either may be lost.
        if (Status s = manifest_file_->commit_both(manifest_); !s.ok()) return s;
        if (name_is_taken(out_)) return error(Code::io_error, "{} has appeared while the pack was being made", out_);
        if (const int e = files_.rename(manifest_file_->path(), out_); e != 0)
            return error(Code::io_error, "cannot rename {}: {}", manifest_file_->path(), std::strerror(e));
        return sync_names();
    }

    Files& files_;
    const model::GgufIndex& index_;
    const model::Geometry& geometry_;
    PartReader reader_;
    const PackJob& job_;
    PackDone done_;

    Identity identity_;
    std::string out_;
    bool complete_ = false;  // it has its name
    bool created_ = false;   // this call made the manifest's file
    bool fresh_ = false;     // there was nothing
    bool begun_ = false;     // now there is
    std::optional<ManifestFile> manifest_file_;
    Manifest manifest_;
    std::optional<Parts> parts_;
    PackMap map_;
    Copy gguf_;
    std::vector<Stamp> stamps_;
    std::vector<OutputFile> sources_;  // to be punched, if asked for
    std::vector<std::optional<OutputFile>> data_;
    std::vector<uint32_t> expected_;  // of the experts; empty if nobody made checksums earlier
    bool guarded_ = false;
    uint64_t so_far_ = 0, total_ = 0;
};

}  // namespace

std::string way_back(const model::GgufIndex& index, const std::string& pack) {
    const std::string named = pack.empty() || pack == pack_path(index) ? "" : " --pack " + pack;
    return fmt::format("sluice unpack --in-place {}{}", index.files()[0].path, named);
}

Result<PackDone> make_pack(Files& files, const model::GgufIndex& index, const model::Geometry& geometry,
                           io::Engine& engine, const PackJob& job) {
    return Packer(files, index, geometry, engine, job).run();
}

}  // namespace sluice::store

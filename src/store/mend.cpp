#include "store/mend.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <optional>

#include "base/bytes.h"
#include "store/manifest_file.h"

namespace sluice::store {
namespace {

uint64_t size_of(const std::string& path) {
    struct stat st {};
    return ::stat(path.c_str(), &st) == 0 ? static_cast<uint64_t>(st.st_size) : 0;
}

Status stopped_unless(const Progress& progress, uint64_t done, uint64_t total) {
    return progress && !progress(done, total) ? error(Code::cancelled, "stopped") : Status();
}

// The files of a copy, open for writing as they are needed.
class Writers {
  public:
    Writers(Files& files, std::vector<std::string> paths) : files_(files), paths_(std::move(paths)) {
        out_.resize(paths_.size());
    }
    Result<OutputFile*> open(uint32_t file) {
        if (!out_[file]) {
            auto out = OutputFile::open(files_, paths_[file], O_RDWR | O_CREAT);
            if (!out.ok()) return out.status();
            out_[file].emplace(std::move(*out));
        }
        return &*out_[file];
    }
    Status write(const Parts& parts, const CopyMap& map, PartId part, std::span<const std::byte> bytes) {
        for (const Piece& p : parts.pieces(map, part)) {
            auto out = open(p.file);
            if (!out.ok()) return out.status();
            if (Status s = (*out)->write(bytes.first(p.bytes), p.offset); !s.ok()) return s;
            bytes = bytes.subspan(p.bytes);
        }
        return {};
    }
    Status sync() {
        for (auto& out : out_) {
            if (!out) continue;
            if (Status s = out->sync(); !s.ok()) return s;
        }
        return {};
    }

  private:
    Files& files_;
    std::vector<std::string> paths_;
    std::vector<std::optional<OutputFile>> out_;
};

// The part, from the first of these copies that has it.
Result<std::span<const std::byte>> from_any(PartReader& reader, const Reference& reference,
                                            std::span<const Copy* const> copies, PartId part) {
    Status why = error(Code::not_found, "no other copy keeps {}", reference.parts.name(part));
    for (const Copy* c : copies) {
        if (!c->holds(reference.parts, part)) continue;
        auto bytes = reader.read_checked(*c, reference.parts, part, reference.sums[part]);
        if (bytes.ok()) return bytes;
        why = bytes.status();
    }
    return why;
}

// One line for each stretch of the model's files that these parts take without a gap.
std::vector<std::string> lost_stretches(const Parts& parts, std::span<const PartDamage> lost) {
    struct Taken {
        Piece piece;
        const PartDamage* damage;
    };
    std::vector<Taken> taken;
    for (const PartDamage& d : lost) {
        for (const Piece& p : parts.pieces(parts.gguf(), d.part)) taken.push_back({p, &d});
    }
    std::sort(taken.begin(), taken.end(), [](const Taken& a, const Taken& b) {
        return std::pair(a.piece.file, a.piece.offset) < std::pair(b.piece.file, b.piece.offset);
    });
    std::vector<std::string> out;
    for (size_t i = 0; i < taken.size();) {
        const Piece& first = taken[i].piece;
        uint64_t end = first.offset + first.bytes;
        size_t j = i + 1;
        while (j < taken.size() && taken[j].piece.file == first.file && taken[j].piece.offset == end)
            end += taken[j++].piece.bytes;
        const std::string what = j == i + 1
                                     ? taken[i].damage->what
                                     : fmt::format("{} parts, from {} to {}", j - i, parts.name(taken[i].damage->part),
                                                   parts.name(taken[j - 1].damage->part));
        out.push_back(fmt::format("{}; to fetch: bytes {}-{} of {}", what, first.offset, end - 1,
                                  parts.source().files[first.file].name));
        i = j;
    }
    return out;
}

// Whether the copy has the part in files that are there.
bool can_give(const Copy& copy, const Parts& parts, PartId part) {
    if (!copy.holds(parts, part)) return false;
    const std::vector<Piece> pieces = parts.pieces(copy.map, part);
    return std::all_of(pieces.begin(), pieces.end(), [&](const Piece& p) { return copy.files[p.file] != nullptr; });
}

// The target's files that are not there and that these helpers cannot bring back: of the experts in them (of the rest,
// if they keep no experts) nobody has any. They may be elsewhere, and an empty file would stand in their place.
std::vector<bool> left_missing(const Parts& parts, const Copy& target, std::span<const Copy* const> helpers) {
    std::vector<bool> experts(target.paths.size()), experts_come(target.paths.size()), rest_comes(target.paths.size());
    for (PartId p = 0; p < parts.count(); ++p) {
        if (!target.holds(parts, p)) continue;
        const bool comes =
            std::any_of(helpers.begin(), helpers.end(), [&](const Copy* c) { return can_give(*c, parts, p); });
        const bool dense = p < parts.first(1);
        for (const Piece& x : parts.pieces(target.map, p)) {
            if (!dense) experts[x.file] = true;
            if (comes) (dense ? rest_comes : experts_come)[x.file] = true;
        }
    }
    std::vector<bool> out(target.paths.size());
    for (size_t f = 0; f < out.size(); ++f) {
        out[f] = target.trouble[f].code() == Code::not_found && !(experts[f] ? experts_come : rest_comes)[f];
    }
    return out;
}

class Repair {
  public:
    Repair(Files& files, Bundle bundle, io::Engine& engine, const RepairJob& job)
        : files_(files), b_(std::move(bundle)), engine_(engine), reader_(engine), job_(job) {}

    Result<Repaired> run() {
        std::optional<ManifestFile> manifest;
        if (b_.manifest) {
            if (!b_.complete()) {
                return error(Code::unsupported, "{} is not complete: {} goes on with it{}", b_.pack, finishing(b_),
                             b_.manifest->reclaimed ? ", and sluice unpack --in-place undoes it" : "");
            }
            auto locked = ManifestFile::open(files_, b_.pack, false);
            if (!locked.ok()) return locked.status();
            manifest.emplace(std::move(*locked));
        }
        for (const std::string& path : job_.from) {
            auto copy = open_other(b_, path, job_.access);
            if (!copy.ok()) return copy.status().within("--from " + path);
            others_.push_back(std::move(*copy));
        }
        if (b_.packed) {
            if (Status s = data_is_ours(*b_.packed); !s.ok()) return s;
        }
        // A model that is not there at all is not made anew: that is what unpack is for.
        if (const Status gone = missing_model(b_); !gone.ok()) {
            out_.missing.push_back(gone.message());
        } else if (!b_.own.missing()) {
            if (Status s = mend(b_.own, false); !s.ok()) return s;
        }
        if (b_.packed) {
            if (Status s = mend(*b_.packed, true); !s.ok()) return s;
        }
        if (!b_.note.empty()) {
            if (Status s = manifest->commit_both(*b_.manifest); !s.ok()) return s;
            out_.mended.push_back(b_.pack + ": both slots of the manifest");
        }
        return out_;
    }

  private:
    Status mend(Copy& target, bool is_pack) {
        const Reference& reference = *b_.reference;
        const Parts& parts = reference.parts;
        std::vector<const Copy*> helpers{is_pack ? &b_.own : b_.packed ? &*b_.packed : nullptr};
        for (const Copy& c : others_) helpers.push_back(&c);
        std::erase(helpers, nullptr);
        const std::vector<bool> left = left_missing(parts, target, helpers);
        for (size_t f = 0; f < left.size(); ++f) {
            if (!left[f]) continue;
            out_.missing.push_back(
                fmt::format("{} is missing: put it back, or sluice repair {} --from COPY", target.paths[f], b_.gguf));
        }
        auto verdict = verify_copy(reference, target, engine_, Depth::full, job_.progress);
        if (!verdict.ok()) return verdict.status();
        std::erase_if(verdict->damage, [&](const PartDamage& d) {
            const std::vector<Piece> pieces = parts.pieces(target.map, d.part);
            return std::any_of(pieces.begin(), pieces.end(), [&](const Piece& p) { return left[p.file]; });
        });
        out_.looked_at += verdict->parts;
        // A drive loses a little. A model that was trained on differs in all of some tensors.
        constexpr uint64_t kFew = 16, kOneIn = 64;
        if (!is_pack && !job_.sure && verdict->damage.size() > kFew &&
            verdict->damage.size() > verdict->parts / kOneIn) {
            return error(Code::unsupported,
                         "{} of {} parts of {} are not what the checksums say: it may be another model. With --yes it "
                         "is made the one that {} describes",
                         verdict->damage.size(), verdict->parts, target.name,
                         b_.pack.empty() ? "its file of checksums" : b_.pack);
        }
        Writers writers(files_, target.paths);
        if (Status s = mend_frames(target, writers, is_pack, left); !s.ok()) return s;
        std::vector<PartId> written;
        std::vector<PartDamage> lost;
        uint64_t done = 0;
        for (const PartDamage& d : verdict->damage) {
            if (Status s = stopped_unless(job_.progress, done++, verdict->damage.size()); !s.ok()) return s;
            const auto bytes = from_any(reader_, reference, helpers, d.part);
            if (!bytes.ok()) {
                lost.push_back(d);
                continue;
            }
            if (Status s = writers.write(reference.parts, target.map, d.part, *bytes); !s.ok()) return s;
            written.push_back(d.part);
        }
        if (Status s = writers.sync(); !s.ok()) return s;
        out_.lost_parts += lost.size();
        for (std::string& line : lost_stretches(parts, lost)) out_.lost.push_back(std::move(line));
        if (written.empty()) return {};
        const Copy again = open_copy(target.name, target.map, target.paths, job_.access);
        for (const PartId p : written) {
            const auto bytes = reader_.read_checked(again, reference.parts, p, reference.sums[p]);
            if (!bytes.ok()) return bytes.status().within("what was written cannot be read back");
            out_.mended.push_back(reference.parts.name(p) + ": " + reference.parts.place(target.map, target.paths, p));
        }
        // It helps the next one.
        const bool skeleton = target.skeleton;
        target = open_copy(target.name, target.map, target.paths, job_.access);
        target.skeleton = skeleton;
        return {};
    }

    // A data file may be missing, cut off or damaged, but not be what another pack or a model needs.
    Status data_is_ours(const Copy& pack) {
        for (uint32_t f = 0; f < pack.paths.size(); ++f) {
            const std::string& path = pack.paths[f];
            if (!name_is_taken(path)) continue;
            const uint64_t size = size_of(path), wanted = pack.map.file_bytes[f];
            if (size > wanted || foreign_data(path, data_header(*b_.manifest, *b_.map, f))) {
                return error(Code::unsupported,
                             "{} is another file than this pack's (it has {} bytes, and should have {}): "
                             "nothing was written; move it away, then repair makes the right one",
                             path, size, wanted);
            }
        }
        return {};
    }

    // Sizes, and the first bytes of a pack's data files.
    Status mend_frames(const Copy& target, Writers& writers, bool is_pack, const std::vector<bool>& left) {
        for (uint32_t f = 0; f < target.paths.size(); ++f) {
            if (left[f]) continue;
            const std::string& path = target.paths[f];
            const uint64_t wanted = target.map.file_bytes[f];
            const uint64_t size = size_of(path);
            if (size > wanted && !is_pack) {
                return error(Code::unsupported, "{} has {} bytes, more than the {} that it should: it is another file",
                             path, size, wanted);
            }
            if (size == wanted && (!is_pack || target.trouble[f].ok())) continue;
            auto out = writers.open(f);
            if (!out.ok()) return out.status();
            if (size != wanted) {
                if (Status s = (*out)->resize(wanted); !s.ok()) return s;
            }
            if (is_pack) {
                const std::string header = data_header(*b_.manifest, *b_.map, f);
                if (Status s = (*out)->write(std::as_bytes(std::span(header.data(), header.size())), 0); !s.ok())
                    return s;
            }
            out_.mended.push_back(path + ": its size and its beginning");
            if (const int e = files_.sync_directory(path); e != 0)
                return error(Code::io_error, "cannot make {} durable: {}", path, std::strerror(e));
        }
        return {};
    }

    Files& files_;
    Bundle b_;
    io::Engine& engine_;
    PartReader reader_;
    const RepairJob& job_;
    std::vector<Copy> others_;
    Repaired out_;
};

}  // namespace

Result<Repaired> repair(Files& files, Bundle bundle, io::Engine& engine, const RepairJob& job) {
    return Repair(files, std::move(bundle), engine, job).run();
}

namespace {

// Takes away what a call made and could not finish.
class Unfinished {
  public:
    explicit Unfinished(Files& files) : files_(files) {}
    Unfinished(const Unfinished&) = delete;
    Unfinished& operator=(const Unfinished&) = delete;
    ~Unfinished() {
        for (const std::string& path : paths_) (void)files_.remove(path);
    }
    void add(const std::string& path) { paths_.push_back(path); }
    void finished(const std::string& path) { std::erase(paths_, path); }

  private:
    Files& files_;
    std::vector<std::string> paths_;
};

}  // namespace

Result<Unpacked> unpack_into(Files& files, const Bundle& bundle, const std::string& directory, io::Engine& engine,
                             io::Access access, const Progress& progress) {
    if (!bundle.packed) return error(Code::not_found, "there is no pack of {}", bundle.gguf);
    if (!bundle.complete())
        return error(Code::unsupported, "{} is not complete; sluice unpack --in-place undoes what was begun",
                     bundle.pack);
    const bool whole_model =
        std::all_of(bundle.own.trouble.begin(), bundle.own.trouble.end(), [](const Status& s) { return s.ok(); });
    if (!bundle.manifest->shape.keeps_dense && !whole_model)
        return error(Code::not_found,
                     "this pack has only the experts; the model is needed too: sluice unpack --pack {} MODEL",
                     bundle.pack);
    const Reference& reference = *bundle.reference;
    const Parts& parts = reference.parts;
    std::vector<std::string> names, now;
    std::vector<bool> there;
    uint64_t need = 0;
    for (const SourceFile& f : parts.source().files) {
        names.push_back((std::filesystem::path(directory) / f.name).string());
        there.push_back(name_is_taken(names.back()));
        now.push_back(there.back() ? names.back() : unpack_path(names.back()));
        if (!there.back()) need += f.size;
    }
    uint64_t free = 0;
    if (const int e = files.free_bytes(names[0], free); e != 0)
        return error(Code::io_error, "cannot look at the drive of {}: {}", directory, std::strerror(e));
    if (need > free)
        return error(Code::io_error, "{} has {} free, and the model needs {}", directory, human_bytes(free),
                     human_bytes(need));
    Unpacked done{.paths = names, .bytes = 0, .pack = bundle.pack};
    Unfinished unfinished(files);
    std::vector<std::optional<OutputFile>> out(names.size());
    for (size_t f = 0; f < names.size(); ++f) {
        if (there[f]) continue;
        if (name_is_taken(now[f]))
            return error(Code::invalid_argument,
                         "{} exists: another sluice unpack is writing it, or one was interrupted; then remove it",
                         now[f]);
        auto file = OutputFile::open(files, now[f], O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW);
        if (!file.ok()) return file.status();
        unfinished.add(now[f]);
        if (Status s = file->allocate(0, std::max<uint64_t>(parts.source().files[f].size, 1)); !s.ok()) return s;
        if (Status s = file->resize(parts.source().files[f].size); !s.ok()) return s;
        out[f].emplace(std::move(*file));
    }
    uint64_t total = 0;
    for (uint32_t s = 0; s < parts.n_steps(); ++s) total += 2 * parts.step_bytes(s);
    uint64_t so_far = 0;
    PartReader reader(engine);
    const std::vector<const Copy*> helpers{&*bundle.packed, &bundle.own};
    for (PartId p = 0; p < parts.count(); ++p) {
        const std::vector<Piece> pieces = parts.pieces(parts.gguf(), p);
        if (std::any_of(pieces.begin(), pieces.end(), [&](const Piece& x) { return !there[x.file]; })) {
            const auto bytes = from_any(reader, reference, helpers, p);
            if (!bytes.ok()) return bytes.status();
            uint64_t at = 0;
            for (const Piece& x : pieces) {
                if (!there[x.file]) {
                    if (Status s = out[x.file]->write(bytes->subspan(at, x.bytes), x.offset); !s.ok()) return s;
                    done.bytes += x.bytes;
                }
                at += x.bytes;
            }
        }
        so_far += parts.bytes(p);
        if (Status s = stopped_unless(progress, so_far, total); !s.ok()) return s;
    }
    for (auto& file : out) {
        if (!file) continue;
        if (Status s = file->sync(); !s.ok()) return s;
    }
    const Copy made = open_copy(directory, parts.gguf(), now, access);
    for (PartId p = 0; p < parts.count(); ++p) {
        const auto bytes = reader.read_checked(made, parts, p, reference.sums[p]);
        if (!bytes.ok()) {
            const std::vector<Piece> pieces = parts.pieces(parts.gguf(), p);
            for (const Piece& x : pieces) {
                if (there[x.file])
                    return error(Code::invalid_argument,
                                 "{} is there already and is not what the pack gives ({}); move it away, or unpack "
                                 "--in-place if its experts were reclaimed",
                                 names[x.file], bytes.status().message());
            }
            return bytes.status().within("what was written cannot be read back");
        }
        so_far += parts.bytes(p);
        if (Status s = stopped_unless(progress, so_far, total); !s.ok()) return s;
    }
    for (size_t f = 0; f < names.size(); ++f) {
        if (there[f]) continue;
        if (name_is_taken(names[f]))
            return error(Code::io_error, "{} has appeared while it was being unpacked", names[f]);
        const int e = files.rename(now[f], names[f]);
        if (e == 0) unfinished.finished(now[f]);
        const int d = e == 0 ? files.sync_directory(names[f]) : 0;
        if (e != 0 || d != 0)
            return error(Code::io_error, "cannot rename {}: {}", now[f], std::strerror(e != 0 ? e : d));
    }
    return done;
}

namespace {

// Whether all that these experts of the model have, besides zeros, is what the pack has there: an interrupted call may
// have filled a part of them.
Status only_zeros_change(const Bundle& bundle, std::span<const PartDamage> damage, io::Engine& engine) {
    const Reference& reference = *bundle.reference;
    const Parts& parts = reference.parts;
    PartReader own_reader(engine), pack_reader(engine);
    for (const PartDamage& d : damage) {
        const std::vector<Piece> pieces = parts.pieces(parts.gguf(), d.part);
        if (std::all_of(pieces.begin(), pieces.end(),
                        [&](const Piece& x) { return all_hole(bundle.own.files[x.file]->fd(), x.offset, x.bytes); }))
            continue;
        const auto own = own_reader.read(bundle.own, parts, d.part);
        if (!own.ok()) return own.status();
        if (std::all_of(own->begin(), own->end(), [](std::byte b) { return b == std::byte{0}; })) continue;
        const auto packed = pack_reader.read_checked(*bundle.packed, parts, d.part, reference.sums[d.part]);
        if (!packed.ok()) return packed.status();
        for (size_t i = 0; i < own->size(); ++i) {
            if ((*own)[i] != std::byte{0} && (*own)[i] != (*packed)[i])
                return error(Code::unsupported,
                             "{}: it is not a hole and not what the pack has: is this another model? Nothing was "
                             "written",
                             d.what);
        }
    }
    return {};
}

}  // namespace

Result<Unpacked> unpack_in_place(Files& files, Bundle bundle, io::Engine& engine, io::Access access,
                                 const Progress& progress) {
    if (!bundle.packed) return error(Code::not_found, "there is no pack of {}", bundle.gguf);
    auto manifest = ManifestFile::open(files, bundle.manifest_path, false);
    if (!manifest.ok()) return manifest.status();
    const Reference& reference = *bundle.reference;
    const Parts& parts = reference.parts;
    for (size_t f = 0; f < bundle.own.paths.size(); ++f) {
        if (!bundle.own.trouble[f].ok()) return bundle.own.trouble[f];
        if (size_of(bundle.own.paths[f]) != parts.source().files[f].size)
            return error(Code::unsupported, "{} has another size than the model that was packed", bundle.own.paths[f]);
    }
    bundle.own.skeleton = false;  // we want to know
    uint64_t total = 0;
    for (PartId p = 0; p < reference.last(); ++p) total += parts.bytes(p);
    uint64_t before = 0;
    const auto shifted = [&](uint64_t done, uint64_t) { return !progress || progress(before + done, 3 * total); };
    const auto missing = verify_copy(reference, bundle.own, engine, Depth::full, shifted);
    if (!missing.ok()) return missing.status();
    // What is no expert is not the pack's to decide: another model may have taken the place of ours.
    uint64_t need = 0;
    for (const PartDamage& d : missing->damage) {
        if (d.part < parts.first(1))
            return error(Code::unsupported, "{}: it is damaged, or another model than was packed; sluice repair {}",
                         d.what, bundle.gguf);
        need += parts.bytes(d.part);
    }
    if (Status s = only_zeros_change(bundle, missing->damage, engine); !s.ok()) return s;
    uint64_t free = 0;
    if (const int e = files.free_bytes(bundle.gguf, free); e != 0)
        return error(Code::io_error, "cannot look at the drive of {}: {}", bundle.gguf, std::strerror(e));
    if (need > free)
        return error(Code::io_error, "the drive of {} has {} free, and the experts need {}", bundle.gguf,
                     human_bytes(free), human_bytes(need));
    Unpacked done{.paths = bundle.own.paths, .bytes = 0, .pack = bundle.manifest_path, .complete = bundle.complete()};
    Writers writers(files, bundle.own.paths);
    PartReader reader(engine);
    const std::vector<const Copy*> helpers{&*bundle.packed};
    for (const PartDamage& d : missing->damage) {
        const auto bytes = from_any(reader, reference, helpers, d.part);
        if (!bytes.ok()) return bytes.status();
        if (Status s = writers.write(parts, parts.gguf(), d.part, *bytes); !s.ok()) return s;
        done.bytes += bytes->size();
        if (Status s = stopped_unless(progress, total + done.bytes, 3 * total); !s.ok()) return s;
    }
    if (Status s = writers.sync(); !s.ok()) return s;
    before = 2 * total;
    const Copy again = open_copy(bundle.gguf, parts.gguf(), bundle.own.paths, access);
    const auto whole = verify_copy(reference, again, engine, Depth::full, shifted);
    if (!whole.ok()) return whole.status();
    if (!whole->damage.empty())
        return error(Code::io_error, "what was written cannot be read back: {}", whole->damage[0].what);
    if (bundle.manifest->reclaimed) {
        bundle.manifest->reclaimed = false;
        if (Status s = manifest->commit_both(*bundle.manifest); !s.ok()) return s;
    }
    for (const std::string& path : bundle.own.paths) {
        const std::string guard = guard_path(path);
        if (!name_is_taken(guard)) continue;
        if (const int e = files.remove(guard); e != 0)
            return error(Code::io_error, "cannot remove {}: {}", guard, std::strerror(e));
    }
    return done;
}

}  // namespace sluice::store

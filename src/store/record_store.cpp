#include "store/record_store.h"

#include <algorithm>

#include "base/bytes.h"
#include "base/memory.h"

namespace sluice::store {

Result<Holder> open_gguf(const model::GgufIndex& index, const model::Geometry& geometry, io::Access access,
                         std::string* note) {
    Holder holder;
    holder.name = index.files()[0].path;
    holder.shares = true;
    std::vector<const io::File*> opened(index.files().size(), nullptr);
    for (const model::ExpertSet& set : geometry.sets) {
        std::vector<Place>& places = holder.places.emplace_back();
        for (const model::ExpertTensor& t : set.tensors) {
            if (opened[t.file] == nullptr) {
                const model::FileEntry& entry = index.files()[t.file];
                auto file = io::File::open(entry.path, access);
                // Our memory gives no more alignment than this, so a device that wants more is read through the page
                // cache.
                if (file.ok() && std::max(file->mem_align(), file->offset_align()) > kDirectAlign) {
                    file = io::File::open(entry.path, io::Access::buffered);
                }
                if (!file.ok()) return file.status();
                if (file->device() != entry.device || file->inode() != entry.inode) {
                    return error(Code::io_error, "{} was replaced while it was being opened; load it again",
                                 entry.path);
                }
                if (note != nullptr && access == io::Access::direct && !file->direct() && note->empty()) {
                    *note = fmt::format("{} is read through the page cache: {}", entry.path, file->fallback_reason());
                }
                holder.files.push_back(std::make_unique<io::File>(std::move(*file)));
                opened[t.file] = holder.files.back().get();
            }
            places.push_back({.file = opened[t.file], .offset = t.offset, .stride = t.bytes_per_expert});
        }
    }
    return holder;
}

RecordStore RecordStore::over(const model::Geometry& geometry, std::span<const io::File* const> files) {
    Holder holder;
    holder.name = files.empty() ? "" : files[0]->path();
    holder.shares = true;
    for (const model::ExpertSet& set : geometry.sets) {
        std::vector<Place>& places = holder.places.emplace_back();
        for (const model::ExpertTensor& t : set.tensors)
            places.push_back({.file = files[t.file], .offset = t.offset, .stride = t.bytes_per_expert});
    }
    return {geometry, std::move(holder)};
}

RecordStore::RecordStore(const model::Geometry& geometry, Holder first) : geometry_(geometry) {
    add_holder(std::move(first));
    number_records();
}

void RecordStore::add_holder(Holder holder) {
    assert(holders_.size() < kMaxHolders && holder.places.size() == geometry_.sets.size());
    holders_.push_back(std::move(holder));
}

void RecordStore::set_checksums(std::vector<uint32_t> sums) {
    assert(first_sum_.back() + uint64_t{geometry_.sets.back().n_expert} * geometry_.sets.back().tensors.size() ==
           sums.size());
    sums_ = std::move(sums);
}

void RecordStore::number_records() {
    uint64_t sum = 0;
    for (uint32_t s = 0; s < geometry_.sets.size(); ++s) {
        first_record_.push_back(static_cast<uint32_t>(set_of_.size()));
        first_sum_.push_back(sum);
        sum += uint64_t{geometry_.sets[s].n_expert} * geometry_.sets[s].tensors.size();
        set_of_.insert(set_of_.end(), geometry_.sets[s].n_expert, s);
    }
}

RecordName RecordStore::name(RecordId record) const {
    const model::ExpertSet& set = geometry_.sets[set_of_[record]];
    return {.layer = set.layer, .expert = expert_of(record), .group = set.group};
}

Extent RecordStore::extent(RecordId record, uint32_t component, HolderId holder) const {
    const uint32_t set = set_of_[record];
    const Place& p = holders_[holder].places[set][component];
    return {.file = p.file,
            .offset = p.offset + expert_of(record) * p.stride,
            .bytes = geometry_.sets[set].tensors[component].bytes_per_expert};
}

RecordStore::AlignedRead RecordStore::aligned(const Extent& extent) {
    const uint64_t a = extent.file->offset_align();
    const uint64_t begin = align_down(extent.offset, a);
    const uint64_t end = align_up(extent.offset + extent.bytes, a);
    assert(end - begin <= UINT32_MAX);
    return {.offset = begin,
            .length = static_cast<uint32_t>(end - begin),
            .need = static_cast<uint32_t>(extent.offset + extent.bytes - begin),
            .delta = static_cast<uint32_t>(extent.offset - begin)};
}

uint64_t RecordStore::aligned_capacity(uint32_t set, uint32_t component, HolderId holder) const {
    uint64_t most = 0;
    for (uint32_t e = 0; e < geometry_.sets[set].n_expert; ++e) {
        const Extent extent = this->extent(record(set, e), component, holder);
        if (extent.file != nullptr) most = std::max<uint64_t>(most, aligned(extent).length);
    }
    return most;
}

bool RecordStore::direct() const {
    for (const Holder& h : holders_) {
        for (const std::vector<Place>& set : h.places) {
            for (const Place& p : set) {
                if (h.shares && p.file != nullptr && !p.file->direct()) return false;
            }
        }
    }
    return true;
}

}  // namespace sluice::store

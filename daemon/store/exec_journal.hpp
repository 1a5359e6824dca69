// The commands that the daemon knows, on disk: `execs.journal` in the state directory, one record a
// line, the last one of an id counts.
//
// Appended to before a command is sent, without fsync: it is for the daemon's own death, not the
// machine's, with which every client dies too. A torn last line is ignored; the file is written
// anew when most of it is old. Owned by the registry of commands; the directory belongs to the
// holder of the instance lock. 0600, since ids and keys are nobody else's business.
#pragma once

#include "core/exec_record.hpp"

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

namespace sandboxd::store {

class exec_journal {
public:
    explicit exec_journal(const std::filesystem::path& directory);
    ~exec_journal();
    exec_journal(const exec_journal&) = delete;
    exec_journal& operator=(const exec_journal&) = delete;

    // The last record of every id, oldest id first. What cannot be read is no reason not to start:
    // trouble() says so.
    std::vector<core::exec_record> load();

    // Reaches the kernel before it returns. A failure is kept in trouble(): the command's claim in
    // its sandbox still keeps it from running twice.
    void append(const core::exec_record& record);

    // Most of the file is old, in view of that many records.
    bool overgrown(std::size_t records) const noexcept;
    void rewrite(const std::vector<core::exec_record>& records);

    // Why the last write or the reading failed; empty if it did not.
    const std::string& trouble() const noexcept { return trouble_; }

private:
    void open();
    void write(const std::string& text);

    std::filesystem::path file_;
    int fd_ = -1;
    std::size_t size_ = 0; // bytes
    std::string trouble_;
};

} // namespace sandboxd::store

// How the root of a cell is put together; see rootfs.hpp.
#include "cell/rootfs.hpp"

#include <fcntl.h>
#include <linux/capability.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>
#include <system_error>

namespace emulator::cell {

namespace {

[[noreturn]] void fail(const std::string& step) {
    throw std::system_error(errno, std::generic_category(), step);
}

void make_dir(const std::string& path, mode_t mode = 0755) {
    if (::mkdir(path.c_str(), mode) != 0 && errno != EEXIST) fail("mkdir " + path);
    ::chmod(path.c_str(), mode);
}

void mount_tmpfs(const std::string& path, std::uint64_t megabytes, const char* mode) {
    const std::string options = "size=" + std::to_string(megabytes) + "m,mode=" + mode;
    if (::mount("tmpfs", path.c_str(), "tmpfs", MS_NOSUID | MS_NODEV, options.c_str()) != 0)
        fail("mount tmpfs on " + path);
}

// Binds with everything mounted below it: a user namespace may not take a tree apart.
void bind(const std::string& from, const std::string& to, std::uint64_t attributes) {
    unique_fd tree(
        ::open_tree(AT_FDCWD, from.c_str(), OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_RECURSIVE));
    if (!tree) fail("open_tree " + from);
    mount_attr attr{};
    attr.attr_set = attributes;
    attr.propagation = MS_PRIVATE;
    if (::mount_setattr(tree.get(), "", AT_EMPTY_PATH | AT_RECURSIVE, &attr, sizeof attr) != 0)
        fail("mount_setattr " + from);
    if (::move_mount(tree.get(), "", AT_FDCWD, to.c_str(), MOVE_MOUNT_F_EMPTY_PATH) != 0)
        fail("move_mount " + to);
}

bool exists(const std::string& path) {
    struct stat status {};
    return ::lstat(path.c_str(), &status) == 0;
}

// A directory of the host that can be written to for as long as the cell lives.
void layer(const std::string& name, const std::string& root, const std::string& layers,
           bool privileged) {
    const std::string from = "/" + name, to = root + "/" + name, upper = layers + "/" + name,
                      work = upper + ".work";
    make_dir(to);
    make_dir(upper);
    make_dir(work);
    const std::string options = "lowerdir=" + from + ",upperdir=" + upper + ",workdir=" + work +
                                (privileged ? "" : ",userxattr");
    if (::mount("overlay", to.c_str(), "overlay", MS_NODEV, options.c_str()) != 0)
        bind(from, to, MOUNT_ATTR_RDONLY | MOUNT_ATTR_NODEV);
}

void make_devices(const std::string& dev) {
    make_dir(dev);
    mount_tmpfs(dev, 1, "755");
    for (const char* name : {"null", "zero", "full", "random", "urandom", "tty"}) {
        const std::string path = dev + "/" + name;
        unique_fd made(::open(path.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0666));
        bind(std::string("/dev/") + name, path, 0);
    }
    make_dir(dev + "/pts");
    if (::mount("devpts", (dev + "/pts").c_str(), "devpts", MS_NOSUID | MS_NOEXEC,
                "newinstance,ptmxmode=0666,mode=0620") == 0 &&
        ::symlink("pts/ptmx", (dev + "/ptmx").c_str()) != 0)
        fail("symlink /dev/ptmx");
    make_dir(dev + "/shm");
    mount_tmpfs(dev + "/shm", 64, "1777");
    constexpr std::array<std::pair<const char*, const char*>, 4> links{
        {{"/proc/self/fd", "fd"},
         {"/proc/self/fd/0", "stdin"},
         {"/proc/self/fd/1", "stdout"},
         {"/proc/self/fd/2", "stderr"}}};
    for (const auto& [target, name] : links)
        if (::symlink(target, (dev + "/" + name).c_str()) != 0) fail("symlink in /dev");
}

void make_proc(const std::string& proc, bool privileged) {
    make_dir(proc, 0555);
    if (::mount("proc", proc.c_str(), "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, nullptr) != 0)
        fail("mount /proc");
    if (!privileged) return; // the kernel refuses these to a user namespace anyway
    for (const char* name : {"sys", "sysrq-trigger", "irq", "bus", "fs"}) {
        const std::string path = proc + "/" + name;
        if (exists(path)) bind(path, path, MOUNT_ATTR_RDONLY);
    }
    if (exists(proc + "/kcore")) bind("/dev/null", proc + "/kcore", 0);
}

void write_file(const std::string& path, const std::string& text) {
    ::unlink(path.c_str());
    std::ofstream(path) << text; // stays the host's own where /etc is read-only
}

} // namespace

void enter_root(const launch_order& how, bool privileged) {
    const std::string staging = how.staging;
    if (::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0)
        fail("make mounts private");
    mount_tmpfs(staging, how.scratch_mb, "755");
    const std::string root = staging + "/root", layers = staging + "/layers";
    make_dir(root);
    make_dir(layers);
    mount_tmpfs(root, how.scratch_mb, "755");

    for (const std::string name : {"bin", "sbin", "lib", "lib32", "lib64", "libx32"}) {
        struct stat status {};
        const std::string from = "/" + name, to = root + "/" + name;
        if (::lstat(from.c_str(), &status) != 0) continue;
        if (S_ISLNK(status.st_mode)) {
            std::array<char, 256> target{};
            if (::readlink(from.c_str(), target.data(), target.size() - 1) < 0 ||
                ::symlink(target.data(), to.c_str()) != 0)
                fail("link " + name);
        } else {
            make_dir(to);
            bind(from, to, MOUNT_ATTR_RDONLY | MOUNT_ATTR_NODEV);
        }
    }
    for (const std::string name : {"usr", "etc", "opt"})
        if (exists("/" + name)) layer(name, root, layers, privileged);
    write_file(root + "/etc/hostname", std::string(how.hostname) + "\n");
    write_file(root + "/etc/hosts",
               std::string("127.0.0.1 localhost ") + how.hostname + "\n::1 localhost\n");

    for (const std::string name : {"home", "mnt", "media", "srv", "run", "sys", "var", "var/cache",
                                   "var/lib", "var/log", "workspace"})
        make_dir(root + "/" + name);
    make_dir(root + "/var/tmp", 01777);
    if (::symlink("/run", (root + "/var/run").c_str()) != 0) fail("symlink /var/run");
    make_dir(root + "/tmp");
    mount_tmpfs(root + "/tmp", how.scratch_mb, "1777");
    make_dir(root + "/root");
    mount_tmpfs(root + "/root", how.scratch_mb, "700");
    make_devices(root + "/dev");
    make_proc(root + "/proc", privileged);
    ::mount("sysfs", (root + "/sys").c_str(), "sysfs", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC,
            nullptr); // a nicety: may fail
    bind(how.workspace, root + "/workspace", MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV);

    if (::chdir(root.c_str()) != 0) fail("chdir");
    if (::syscall(SYS_pivot_root, ".", ".") != 0) fail("pivot_root");
    if (::umount2(".", MNT_DETACH) != 0) fail("let go of the host's root");
    if (::chdir("/") != 0) fail("chdir /");
}

void drop_capabilities() {
    constexpr std::array keep{CAP_CHOWN,     CAP_DAC_OVERRIDE,     CAP_FOWNER,  CAP_FSETID,
                              CAP_KILL,      CAP_SETGID,           CAP_SETUID,  CAP_SETPCAP,
                              CAP_SETFCAP,   CAP_NET_BIND_SERVICE, CAP_NET_RAW, CAP_NET_ADMIN,
                              CAP_SYS_CHROOT};
    for (int capability = 0; ::prctl(PR_CAPBSET_READ, capability, 0, 0, 0) >= 0; ++capability)
        if (std::find(keep.begin(), keep.end(), capability) == keep.end() &&
            ::prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) != 0)
            fail("drop capability " + std::to_string(capability));
}

void bring_loopback_up() {
    unique_fd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    ifreq request{};
    request.ifr_name[0] = 'l';
    request.ifr_name[1] = 'o';
    request.ifr_flags = IFF_UP | IFF_RUNNING;
    if (!socket || ::ioctl(socket.get(), SIOCSIFFLAGS, &request) != 0) fail("bring loopback up");
}

} // namespace emulator::cell

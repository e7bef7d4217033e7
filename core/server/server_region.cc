// SPDX-License-Identifier: Apache-2.0
#include "core/server/server_region.h"

#include "core/common/error.h"
#include "core/shm/backing.h"

#include <boost/interprocess/exceptions.hpp>
#include <cstring>
#include <sys/mman.h>
#include <sys/stat.h>

namespace libcache {
namespace {

namespace ipc = boost::interprocess;

struct Mappable {
    int fd;
    ipc::mapping_handle_t get_mapping_handle() const { return ipc::ipcdetail::mapping_handle_from_file_handle(fd); }
    ipc::mode_t get_mode() const { return ipc::read_write; }
};

} // namespace

int ServerRegion::map(int fd) try {
    ipc::mapped_region fresh(Mappable{fd}, ipc::read_write, 0, sizeof(ServerTables));
    madvise(fresh.get_address(), fresh.get_size(), MADV_DONTDUMP);
    map_.swap(fresh);
    return 0;
} catch (const ipc::interprocess_exception &e) {
    return fail(CACHE_ENOMEM, "cannot map the server region of %zu bytes: %s", sizeof(ServerTables), e.what());
}

int ServerRegion::make(const ServerConfig &config, Fd *file) {
    if (int rc = make_memfd("libcache server", sizeof(ServerTables), file); rc != 0) return rc;
    if (int rc = map(file->get()); rc != 0) return rc;
    ServerHeader &header = (*this)->header;
    header.magic = kServerMagic;
    header.bytes = sizeof(ServerTables);
    header.config = config;
    header.next_conn_id.store(1, std::memory_order_relaxed); // alone here: the first broker does not exist yet
    header.next_region_id.store(1, std::memory_order_relaxed);
    header.next_object_id.store(1, std::memory_order_relaxed);
    return 0;
}

int ServerRegion::open(int fd) {
    struct stat status;
    if (fstat(fd, &status) != 0 || status.st_size != static_cast<off_t>(sizeof(ServerTables)))
        return fail(CACHE_ECORRUPT, "the server region does not have %zu bytes", sizeof(ServerTables));
    if (int rc = map(fd); rc != 0) return rc;
    if ((*this)->header.magic != kServerMagic || (*this)->header.bytes != sizeof(ServerTables))
        return fail(CACHE_ECORRUPT, "the server region was made by another build");
    return 0;
}

} // namespace libcache

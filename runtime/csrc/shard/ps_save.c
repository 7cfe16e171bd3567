#include "shard/ps_save.h"

int ps_save_objects(const ps_save *to, ps_object *const *objects, uint32_t n, uint64_t pass, void *buffer,
                    size_t size, ps_err *err) {
    ps_cut *cut;
    int code = ps_cut_begin(&cut, objects, n, pass, err);
    for (size_t k = size; code == PS_OK && k == size;) {
        k = ps_cut_read(cut, buffer, size);
        if (k > 0) code = to->put(to->owner, buffer, k, err);
    }
    ps_cut_end(cut);
    return code;
}

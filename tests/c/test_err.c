#include <errno.h>
#include <string.h>

#include "harness.h"
#include "ps_err.h"

TEST(err_has_code_text_and_the_systems_words) {
    ps_err err;
    CHECK(ps_fail(&err, PS_ESYS, ENOENT, "open %s", "x.bin") == PS_ESYS);
    CHECK(err.code == PS_ESYS && err.sys == ENOENT);
    CHECK(strcmp(err.text, "open x.bin: No such file or directory") == 0);
    CHECK(ps_fail(&err, PS_EINVAL, 0, "plain") == PS_EINVAL);
    CHECK(err.sys == 0 && strcmp(err.text, "plain") == 0);
}

TEST(err_may_be_null) {
    CHECK(ps_fail(NULL, PS_ENOMEM, 0, "nobody reads this") == PS_ENOMEM);
}

TEST(err_cuts_long_texts) {
    char path[600];
    memset(path, 'p', sizeof path - 1);
    path[sizeof path - 1] = '\0';
    ps_err err;
    for (int keep = 240; keep < 270; keep++) {
        memset(&err, 'x', sizeof err);
        CHECK(ps_fail(&err, PS_ESYS, EACCES, "%.*s", keep, path) == PS_ESYS);
        CHECK(strnlen(err.text, sizeof err.text) == (size_t)(keep + 19 < 255 ? keep + 19 : 255));
    }
    ps_fail(&err, PS_ESYS, EACCES, "%s", path);
    CHECK(strlen(err.text) == sizeof err.text - 1);
}

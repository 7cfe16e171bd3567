#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "harness.h"
#include "base/ps_err.h"

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

TEST(texts_are_cut_between_characters) {
    ps_err err;
    char text[400], name[80];
    for (size_t shift = 0; shift < 4; shift++) { /* letters of one byte, then of three */
        size_t n = 0;
        for (; n < shift; n++) text[n] = 'a';
        for (; n + 3 < sizeof text; n += 3) memcpy(text + n, "\xe2\x82\xac", 3);
        text[n] = '\0';
        ps_fail(&err, PS_EINVAL, 0, "%s", text);
        size_t end = strlen(err.text);
        CHECK(end > sizeof err.text - 4 && (end - shift) % 3 == 0);
        CHECK((size_t)ps_fit(text, 64) <= 64 && ((size_t)ps_fit(text, 64) - shift) % 3 == 0);
    }
    snprintf(name, sizeof name, "%s", "w");
    ps_fail(&err, PS_ENOMEM, 0, "no memory");
    CHECK(ps_fail_about(&err, name) == PS_ENOMEM && strcmp(err.text, "'w': no memory") == 0);
    CHECK(ps_fit("abc", 9) == 3 && ps_fit("", 9) == 0 && ps_fit("abc", 2) == 2);
}

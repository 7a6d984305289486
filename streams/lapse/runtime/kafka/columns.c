/* From the records of a RecordBatch to columns, and from columns to packed deliveries: what would take an object for
 * each record. Only C's own types cross the border, so that one build serves every Python; `columns.py` calls it.
 *
 * Nothing is read beyond `stop`, and whatever is malformed is refused: the caller has aiokafka say what is wrong.
 */

#include <stdint.h>
#include <string.h>

#define SILENT (-1)
#define INVOLVED (-2)
#define MOST_DIGITS 18

/* A variable-length integer of Kafka's; 0 where it does not end before `stop`. */
static int varint(const uint8_t *b, int64_t *at, int64_t stop, int64_t *value)
{
    uint64_t read = 0;
    int64_t i = *at;
    for (int shift = 0; shift < 64 && i < stop; shift += 7) {
        uint8_t byte = b[i++];
        read |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) {
            *value = (int64_t)(read >> 1) ^ -(int64_t)(read & 1);
            *at = i;
            return 1;
        }
    }
    return 0;
}

/* The bytes behind a length, −1 for null; 0 where they do not end before `stop`. */
static int part(const uint8_t *b, int64_t *at, int64_t stop, int64_t *begin, int64_t *length)
{
    if (!varint(b, at, stop, length) || *length < -1 || *length > stop - *at)
        return 0;
    *begin = *at;
    if (*length > 0)
        *at += *length;
    return 1;
}

/* Which of some names this is, each behind a byte with its length, the last behind a 0; −1 = none. */
static int among(const uint8_t *names, const uint8_t *name, int64_t length)
{
    for (int number = 0; *names; number++, names += 1 + *names)
        if (*names == length && !memcmp(names + 1, name, (size_t)length))
            return number;
    return -1;
}

/* What headers say of a lifetime: that of the first name if it stands alone and is plain, `SILENT`, `INVOLVED`. */
static int stated(const uint8_t *b, int64_t at, int64_t stop, const uint8_t *names, int64_t *ms)
{
    int64_t count, name, name_length, value, length;
    *ms = SILENT;
    if (!varint(b, &at, stop, &count) || count < 0)
        return 0;
    while (count--) {
        if (!part(b, &at, stop, &name, &name_length) || name_length < 0 || !part(b, &at, stop, &value, &length))
            return 0;
        int which = among(names, b + name, name_length);
        if (which < 0)
            continue;
        if (which || *ms != SILENT || length < 1 || length > MOST_DIGITS) {
            *ms = INVOLVED;
            continue;
        }
        int64_t number = 0;
        for (int64_t i = value; i < value + length; i++) {
            if (b[i] < '0' || b[i] > '9') {
                number = INVOLVED;
                break;
            }
            number = number * 10 + (b[i] - '0');
        }
        *ms = number;
    }
    return at == stop;
}

/* The records of a RecordBatch.
 *
 * places: columns of `count` each: offset; timestamp, ms since the epoch; what headers say of a lifetime.
 * spans: columns of `count` each: where key, value, headers begin and how long they are, −1 for null; whether the
 *     headers are those of the record before.
 * append_ms: timestamp of all, if the broker gave it; −1 = each has its own.
 * Returns how many there are; −1 = they are malformed.
 */
int64_t lapse_rows(const uint8_t *b, int64_t at, int64_t stop, int64_t count, int64_t base, int64_t first_ms,
                   int64_t by_broker, int64_t append_ms, const uint8_t *names, int64_t *places, int32_t *spans)
{
    int64_t *offsets = places, *stamps = places + count, *lifetimes = places + 2 * count;
    int32_t *key_at = spans, *key_length = spans + count, *value_at = spans + 2 * count;
    int32_t *value_length = spans + 3 * count, *headers_at = spans + 4 * count, *headers_length = spans + 5 * count;
    int32_t *alike = spans + 6 * count;
    for (int64_t row = 0; row < count; row++) {
        int64_t length, delta_ms, delta, begin, size;
        if (!varint(b, &at, stop, &length) || length < 1 || length > stop - at)
            return -1;
        int64_t end = at + length;
        at++; /* attributes */
        if (!varint(b, &at, end, &delta_ms) || !varint(b, &at, end, &delta))
            return -1;
        offsets[row] = base + delta;
        stamps[row] = by_broker ? append_ms : first_ms + delta_ms;
        if (!part(b, &at, end, &begin, &size))
            return -1;
        key_at[row] = (int32_t)begin;
        key_length[row] = (int32_t)size;
        if (!part(b, &at, end, &begin, &size))
            return -1;
        value_at[row] = (int32_t)begin;
        value_length[row] = (int32_t)size;
        headers_at[row] = (int32_t)at;
        headers_length[row] = (int32_t)(end - at);
        alike[row] = row && headers_length[row - 1] == end - at
            && !memcmp(b + headers_at[row - 1], b + at, (size_t)(end - at));
        if (alike[row])
            lifetimes[row] = lifetimes[row - 1];
        else if (!stated(b, at, end, names, lifetimes + row))
            return -1;
        at = end;
    }
    return at == stop ? count : -1;
}

/* Bytes that stand apart, one behind the other; returns where they end in `out`. */
int64_t lapse_gather(const uint8_t *b, const int32_t *at, const int32_t *length, int64_t count, uint8_t *out)
{
    int64_t end = 0;
    for (int64_t row = 0; row < count; row++)
        if (length[row] > 0) {
            memcpy(out + end, b + at[row], (size_t)length[row]);
            end += length[row];
        }
    return end;
}

static uint8_t *little_endian(uint8_t *out, int32_t number)
{
    uint32_t bits = (uint32_t)number;
    for (int shift = 0; shift < 32; shift += 8)
        *out++ = (uint8_t)(bits >> shift);
    return out;
}

/* The headers of messages as a packed delivery has them, one message's behind the other's.
 *
 * prefix: names that begin so are left out, but for those among `kept`.
 * lengths: gets how long those of each message are.
 * out: has four times the room of what is read.
 * Returns where they end in `out`; −1 = they are malformed.
 */
int64_t lapse_own_headers(const uint8_t *b, const int32_t *at, const int32_t *length, const int32_t *alike,
                          int64_t count, const uint8_t *prefix, const uint8_t *kept, int32_t *lengths, uint8_t *out)
{
    uint8_t *begin = out;
    for (int64_t row = 0; row < count; row++) {
        if (row && alike[row]) {
            memcpy(out, out - lengths[row - 1], (size_t)lengths[row - 1]);
            lengths[row] = lengths[row - 1];
            out += lengths[row];
            continue;
        }
        int64_t from = at[row], stop = from + length[row], left, name, name_length, value, value_length;
        uint8_t *first = out;
        if (!varint(b, &from, stop, &left) || left < 0)
            return -1;
        while (left--) {
            if (!part(b, &from, stop, &name, &name_length) || name_length < 0
                || !part(b, &from, stop, &value, &value_length))
                return -1;
            if (name_length >= *prefix && !memcmp(b + name, prefix + 1, *prefix)
                && among(kept, b + name, name_length) < 0)
                continue;
            out = little_endian(out, (int32_t)name_length);
            memcpy(out, b + name, (size_t)name_length);
            out = little_endian(out + name_length, (int32_t)value_length);
            if (value_length > 0) {
                memcpy(out, b + value, (size_t)value_length);
                out += value_length;
            }
        }
        lengths[row] = (int32_t)(out - first);
    }
    return out - begin;
}

/* From the records of a RecordBatch to columns, and from columns to packed deliveries and letters: what would take an
 * object for each record. Only C's own types cross the border, so that one build serves every Python; `columns.py`
 * calls it.
 *
 * Nothing is read beyond `stop`, and whatever is malformed is refused: the caller has aiokafka say what is wrong.
 */

#include <stdint.h>
#include <string.h>

#ifndef LAPSE_SOURCE
#define LAPSE_SOURCE 0
#endif

/* The checksum of the source that it was built from: an older library would read arguments that it is not given. */
int64_t lapse_source(void)
{
    return LAPSE_SOURCE;
}

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

/* Puts the records of a RecordBatch, from `row` on, into columns of `stride` each: see `lapse_rows`. */
static int rows(const uint8_t *b, int64_t at, int64_t stop, int64_t row, int64_t count, int64_t stride, int64_t base,
                int64_t first_ms, int64_t by_broker, int64_t append_ms, const uint8_t *names, int64_t *places,
                int32_t *spans)
{
    int64_t *offsets = places, *stamps = places + stride, *lifetimes = places + 2 * stride;
    int32_t *key_at = spans, *key_length = spans + stride, *value_at = spans + 2 * stride;
    int32_t *value_length = spans + 3 * stride, *headers_at = spans + 4 * stride, *headers_length = spans + 5 * stride;
    int32_t *alike = spans + 6 * stride;
    for (int64_t behind = row + count; row < behind; row++) {
        int64_t length, delta_ms, delta, begin, size;
        if (!varint(b, &at, stop, &length) || length < 1 || length > stop - at)
            return 0;
        int64_t end = at + length;
        at++; /* attributes */
        if (!varint(b, &at, end, &delta_ms) || !varint(b, &at, end, &delta))
            return 0;
        offsets[row] = base + delta;
        stamps[row] = by_broker ? append_ms : first_ms + delta_ms;
        if (!part(b, &at, end, &begin, &size))
            return 0;
        key_at[row] = (int32_t)begin;
        key_length[row] = (int32_t)size;
        if (!part(b, &at, end, &begin, &size))
            return 0;
        value_at[row] = (int32_t)begin;
        value_length[row] = (int32_t)size;
        headers_at[row] = (int32_t)at;
        headers_length[row] = (int32_t)(end - at);
        alike[row] = row && headers_length[row - 1] == end - at
            && !memcmp(b + headers_at[row - 1], b + at, (size_t)(end - at));
        if (alike[row])
            lifetimes[row] = lifetimes[row - 1];
        else if (!stated(b, at, end, names, lifetimes + row))
            return 0;
        at = end;
    }
    return at == stop;
}

/* The records of a RecordBatch.
 *
 * places: columns of `count` each: offset; timestamp, ms since the epoch; what headers say of a lifetime.
 * spans: columns of `count` each: where key, value, headers begin and how long they are, −1 for null; whether the
 *     headers are those of the record before.
 * names: first the name of the lifetime's header, then those that decide as well how a record is handled.
 * append_ms: timestamp of all, if the broker gave it; −1 = each has its own.
 * Returns how many there are; −1 = they are malformed.
 */
int64_t lapse_rows(const uint8_t *b, int64_t at, int64_t stop, int64_t count, int64_t base, int64_t first_ms,
                   int64_t by_broker, int64_t append_ms, const uint8_t *names, int64_t *places, int32_t *spans)
{
    int are_read = rows(b, at, stop, 0, count, count, base, first_ms, by_broker, append_ms, names, places, spans);
    return are_read ? count : -1;
}

/* CRC-32C, by eight bytes at a time: by the processor's instruction, or by tables. */
static uint32_t crc_tables[8][256];

__attribute__((constructor)) static void make_crc_tables(void)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
        crc_tables[0][i] = crc;
    }
    for (uint32_t i = 0; i < 256; i++)
        for (int table = 1; table < 8; table++)
            crc_tables[table][i] = crc_tables[table - 1][i] >> 8 ^ crc_tables[0][crc_tables[table - 1][i] & 0xff];
}

static uint32_t crc_by_tables(const uint8_t *b, int64_t size)
{
    uint32_t crc = 0xffffffffu;
    for (; size >= 8; size -= 8, b += 8) {
        crc ^= (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
        crc = crc_tables[7][crc & 0xff] ^ crc_tables[6][crc >> 8 & 0xff] ^ crc_tables[5][crc >> 16 & 0xff]
            ^ crc_tables[4][crc >> 24] ^ crc_tables[3][b[4]] ^ crc_tables[2][b[5]] ^ crc_tables[1][b[6]]
            ^ crc_tables[0][b[7]];
    }
    while (size-- > 0)
        crc = crc >> 8 ^ crc_tables[0][(crc ^ *b++) & 0xff];
    return ~crc;
}

#if defined(__x86_64__) && defined(__GNUC__)
__attribute__((target("sse4.2"))) static uint32_t crc_by_instruction(const uint8_t *b, int64_t size)
{
    uint64_t crc = 0xffffffffu, word;
    for (; size >= 8; size -= 8, b += 8) {
        memcpy(&word, b, 8);
        crc = __builtin_ia32_crc32di(crc, word);
    }
    while (size-- > 0)
        crc = __builtin_ia32_crc32qi((uint32_t)crc, *b++);
    return ~(uint32_t)crc;
}

int64_t lapse_crc32c(const uint8_t *b, int64_t size)
{
    return __builtin_cpu_supports("sse4.2") ? crc_by_instruction(b, size) : crc_by_tables(b, size);
}
#else
int64_t lapse_crc32c(const uint8_t *b, int64_t size)
{
    return crc_by_tables(b, size);
}
#endif

/* The same by tables on every processor, for tests. */
int64_t lapse_crc32c_by_tables(const uint8_t *b, int64_t size)
{
    return crc_by_tables(b, size);
}

#define BATCH_HEAD 61
#define BEHIND_LENGTH 12
#define CHECKED_FROM 21
#define BY_BROKER 0x08
#define COMPRESSED_MARKED_OR_IN_TRANSACTION 0x37

/* A signed number of 2, 4 or 8 bytes, big-endian. */
static int64_t number_at(const uint8_t *b, int bytes)
{
    uint64_t read = 0;
    for (int i = 0; i < bytes; i++)
        read = read << 8 | b[i];
    return bytes == 8 ? (int64_t)read : (int64_t)(int32_t)read;
}

/* Which RecordBatches in a row can be read together: of version 2, with records, neither compressed nor part of a
 * transaction, with timestamps of one kind, and with the right checksum.
 *
 * most_bytes: none of them has more.
 * most: how many records they have together, at most.
 * found: gets where they end, how many records they have, the offset behind them, and whether the broker stamped them.
 * Returns how many batches there are.
 */
int64_t lapse_batches(const uint8_t *b, int64_t at, int64_t stop, int64_t most_bytes, int64_t most, int64_t *found)
{
    int64_t batches = 0, records = 0, kind = 0, behind = 0;
    for (; stop - at >= BATCH_HEAD; batches++) {
        int64_t length = number_at(b + at + 8, 4), attributes = number_at(b + at + 21, 2);
        int64_t count = number_at(b + at + 57, 4), size = BEHIND_LENGTH + length;
        if (size < BATCH_HEAD || size > most_bytes || size > stop - at || b[at + 16] != 2
            || attributes & COMPRESSED_MARKED_OR_IN_TRANSACTION || (batches && (attributes & BY_BROKER) != kind)
            || count < 1 || count > most - records || count > size - BATCH_HEAD
            || (uint32_t)number_at(b + at + 17, 4) != (uint32_t)lapse_crc32c(b + at + CHECKED_FROM, size - CHECKED_FROM))
            break;
        kind = attributes & BY_BROKER;
        records += count;
        behind = number_at(b + at, 8) + number_at(b + at + 23, 4) + 1;
        at += size;
    }
    found[0] = at;
    found[1] = records;
    found[2] = behind;
    found[3] = kind != 0;
    return batches;
}

/* The records of batches that `lapse_batches` found, in columns of `count` each: see `lapse_rows`. */
int64_t lapse_rows_of_batches(const uint8_t *b, int64_t at, int64_t stop, int64_t count, const uint8_t *names,
                              int64_t *places, int32_t *spans)
{
    int64_t row = 0;
    while (at < stop) {
        int64_t end = at + BEHIND_LENGTH + number_at(b + at + 8, 4), records = number_at(b + at + 57, 4);
        if (!rows(b, at + BATCH_HEAD, end, row, records, count, number_at(b + at, 8), number_at(b + at + 27, 8),
                  b[at + 22] & BY_BROKER, number_at(b + at + 35, 8), names, places, spans))
            return -1;
        row += records;
        at = end;
    }
    return row;
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

static uint8_t *put_varint(uint8_t *out, int64_t number)
{
    uint64_t zigzag = ((uint64_t)number << 1) ^ (uint64_t)(number >> 63);
    for (; zigzag > 0x7f; zigzag >>= 7)
        *out++ = (uint8_t)(zigzag & 0x7f) | 0x80;
    *out++ = (uint8_t)zigzag;
    return out;
}

static uint8_t *put(uint8_t *out, const uint8_t *bytes, int64_t length)
{
    memcpy(out, bytes, (size_t)length);
    return out + length;
}

/* A part of a record behind its length, −1 for null. */
static uint8_t *put_part(uint8_t *out, const uint8_t *bytes, int64_t length)
{
    out = put_varint(out, length);
    return length > 0 ? put(out, bytes, length) : out;
}

/* A number that is not negative, in decimal digits, which end before `end`; returns where they begin. */
static uint8_t *decimal(uint8_t *end, int64_t number)
{
    do {
        *--end = (uint8_t)('0' + number % 10);
        number /= 10;
    } while (number);
    return end;
}

/* The headers of a message that its letter bears; returns where they end in `out`, 0 if somebody else has to look.
 *
 * special, became: names that a letter bears under another name, and those, packed; an empty one is left out, and one
 *     that begins with a 0 tells something.
 */
static uint8_t *copied(const uint8_t *b, int64_t at, int64_t stop, const uint8_t *special, const uint8_t *became,
                       const int32_t *became_at, uint8_t *out, int64_t *copies)
{
    int64_t left, name, name_length, value, value_length;
    *copies = 0;
    if (!varint(b, &at, stop, &left) || left < 0)
        return 0;
    while (left--) {
        int64_t begin = at;
        if (!part(b, &at, stop, &name, &name_length) || name_length < 0)
            return 0;
        int64_t behind = at;
        if (!part(b, &at, stop, &value, &value_length))
            return 0;
        for (int64_t i = name; i < name + name_length; i++)
            if (b[i] > 0x7f)
                return 0;
        int which = among(special, b + name, name_length);
        if (which < 0) {
            out = put(out, b + begin, behind - begin);
        } else {
            int32_t from = became_at[which], to = became_at[which + 1];
            if (from == to)
                continue;
            if (!became[from])
                return 0;
            out = put(out, became + from, to - from);
        }
        out = put_part(out, b + value, value_length);
        ++*copies;
    }
    return out;
}

/* The letters of messages, packed as `PackedLetters` packs each of them.
 *
 * spans: see `lapse_rows`, with `stride` numbers to a column; the message's row is `first`, and so on.
 * offsets, deadlines_ms: of each message; `never` = it has no deadline.
 * headers: how many lapse adds, but for the deadline.
 * frame: those, in parts, each of which ends where `frame_ends` says: before the offset, between offset and id, the id
 *     before its offset, the id behind it, behind the id, and the name of the deadline.
 * special, became, became_at: see `copied`.
 * ends: gets where each letter ends; one that somebody else has to pack takes nothing.
 * Returns where they end in `out`.
 */
int64_t lapse_letters(const uint8_t *b, const int32_t *spans, int64_t stride, int64_t first, int64_t count,
                      const int64_t *offsets, const int64_t *deadlines_ms, int64_t never, int64_t headers,
                      const uint8_t *frame, const int32_t *frame_ends, const uint8_t *special, const uint8_t *became,
                      const int32_t *became_at, int64_t *ends, uint8_t *out, uint8_t *scratch)
{
    const int32_t *key_at = spans + first, *key_length = key_at + stride, *value_at = key_length + stride;
    const int32_t *value_length = value_at + stride, *headers_at = value_length + stride;
    const int32_t *headers_length = headers_at + stride, *alike = headers_length + stride;
    const uint8_t *between = frame + frame_ends[0], *head = frame + frame_ends[1], *tail = frame + frame_ends[2];
    const uint8_t *behind = frame + frame_ends[3], *until = frame + frame_ends[4];
    int64_t between_size = frame_ends[1] - frame_ends[0], head_size = frame_ends[2] - frame_ends[1];
    int64_t tail_size = frame_ends[3] - frame_ends[2], behind_size = frame_ends[4] - frame_ends[3];
    int64_t until_size = frame_ends[5] - frame_ends[4], copies = 0;
    uint8_t *begin = out, *copied_to = 0, digits[20], *digits_end = digits + 20;
    for (int64_t row = 0; row < count; row++) {
        if (!row || !alike[row])
            copied_to = copied(b, headers_at[row], (int64_t)headers_at[row] + headers_length[row], special, became,
                               became_at, scratch, &copies);
        int has_deadline = deadlines_ms && deadlines_ms[row] != never;
        if (copied_to && value_length[row] >= 0 && !(has_deadline && deadlines_ms[row] < 0)) {
            out = put_part(out, b + key_at[row], key_length[row]);
            out = put_part(out, b + value_at[row], value_length[row]);
            out = put_varint(out, copies + headers + has_deadline);
            out = put(out, scratch, copied_to - scratch);
            uint8_t *place = decimal(digits_end, offsets[row]);
            int64_t place_size = digits_end - place;
            out = put(out, frame, frame_ends[0]);
            out = put_part(out, place, place_size);
            out = put(out, between, between_size);
            out = put_varint(out, head_size + place_size + tail_size);
            out = put(put(put(out, head, head_size), place, place_size), tail, tail_size);
            out = put(out, behind, behind_size);
            if (has_deadline) {
                uint8_t *stated_at = decimal(digits_end, deadlines_ms[row]);
                out = put_part(put(out, until, until_size), stated_at, digits_end - stated_at);
            }
        }
        ends[row] = out - begin;
    }
    return out - begin;
}

/* The records of a SOW topic as its compacted topic and its subscribers get them, packed as `SowOutput` packs each.
 *
 * names, name_ends: their names, one behind the other; the first `skip` bytes of each are no part of its key.
 * entries, entry_ends: the records, as `lapse.core.sow.record` lays them out.
 * block: the header block of those that are packed; one with another takes nothing, and neither does one with a source
 *     or an instant that is none.
 * prefixes, prefix_ends: what the bookmarks of each source begin with.
 * titles, title_ends: what stands before the bookmark, the timestamp and the deadline: the name of its header, and
 *     headers that stand before that one.
 * tail, tail_count: the headers behind those, and how many others there are in all.
 * never: a deadline that is none.
 * ends: gets where each ends.
 * Returns where they end in `out`.
 */
int64_t lapse_states(const uint8_t *names, const int64_t *name_ends, int64_t skip, const uint8_t *entries,
                     const int64_t *entry_ends, int64_t count, const uint8_t *block, int64_t block_size, const uint8_t *prefixes,
                     const int32_t *prefix_ends, int64_t sources, const uint8_t *titles, const int32_t *title_ends,
                     const uint8_t *tail, int64_t tail_size, int64_t tail_count, int64_t never, int64_t *ends,
                     uint8_t *out)
{
    enum { TIMESTAMP = 8, OFFSET = 24, SOURCE = 32, BLOCK = 40 };
    uint8_t *begin = out, digits[20], *digits_end = digits + 20;
    int64_t name = 0, at = 0;
    for (int64_t row = 0; row < count; name = name_ends[row], at = entry_ends[row], row++) {
        const uint8_t *entry = entries + at;
        int64_t size = entry_ends[row] - at - BLOCK - block_size;
        if (size >= 0) {
            int64_t deadline_ms = number_at(entry, 8), timestamp_ms = number_at(entry + TIMESTAMP, 8);
            int64_t offset = number_at(entry + OFFSET, 8), numbers = number_at(entry + SOURCE, 8);
            int64_t source = (int64_t)((uint64_t)numbers >> 32);
            if ((numbers & 0xffffffff) == block_size && !memcmp(entry + BLOCK, block, (size_t)block_size) &&
                source < sources && deadline_ms >= 0 && timestamp_ms >= 0 && offset >= 0) {
                int64_t from = source ? prefix_ends[source - 1] : 0, prefix_size = prefix_ends[source] - from;
                out = put_part(out, names + name + skip, name_ends[row] - name - skip);
                out = put_part(out, entry + BLOCK + block_size, size);
                out = put_varint(out, 2 + (deadline_ms != never) + tail_count);
                uint8_t *digit = decimal(digits_end, offset);
                out = put_varint(put(out, titles, title_ends[0]), prefix_size + (digits_end - digit));
                out = put(put(out, prefixes + from, prefix_size), digit, digits_end - digit);
                digit = decimal(digits_end, timestamp_ms);
                out = put(out, titles + title_ends[0], title_ends[1] - title_ends[0]);
                out = put_part(out, digit, digits_end - digit);
                if (deadline_ms != never) {
                    digit = decimal(digits_end, deadline_ms);
                    out = put(out, titles + title_ends[1], title_ends[2] - title_ends[1]);
                    out = put_part(out, digit, digits_end - digit);
                }
                out = put(out, tail, tail_size);
            }
        }
        ends[row] = out - begin;
    }
    return out - begin;
}

/* Records that are packed, with what stands before each in a RecordBatch: length, attributes, places in it.
 *
 * b, ends: the records, one behind the other.
 * number: which record of the batch the first one is.
 * Returns where they end in `out`.
 */
int64_t lapse_places(const uint8_t *b, const int64_t *ends, int64_t first, int64_t stop, int64_t number, uint8_t *out)
{
    uint8_t *begin = out;
    for (int64_t row = first; row < stop; row++, number++) {
        int64_t from = row ? ends[row - 1] : 0, length = ends[row] - from;
        uint8_t place[12];
        uint8_t *end = put_varint(place + 2, number);
        place[0] = place[1] = 0; /* attributes, and the difference to the batch's timestamp */
        out = put_varint(out, end - place + length);
        out = put(put(out, place, end - place), b + from, length);
    }
    return out - begin;
}

#define UNSURE (-2)
#define DEEPEST 32
#define MOST_FIGURES 15

static int64_t behind_space(const uint8_t *b, int64_t at, int64_t stop)
{
    while (at < stop && (b[at] == ' ' || b[at] == '\n' || b[at] == '\r' || b[at] == '\t'))
        at++;
    return at;
}

#define EACH(byte) ((uint64_t)(byte) * 0x0101010101010101u)
#define BELOW(eight, byte) (((eight) - EACH(byte)) & ~(eight)) /* high bits, of the first such byte at least */

/* The end of a text's characters, where it is of ASCII without escapes; -1 otherwise. */
static int64_t text_end(const uint8_t *b, int64_t at, int64_t stop)
{
    for (; at + 8 <= stop; at += 8) {
        uint64_t eight, quotes, escapes;
        memcpy(&eight, b + at, 8);
        quotes = eight ^ EACH('"'), escapes = eight ^ EACH('\\');
        if ((BELOW(quotes, 1) | BELOW(escapes, 1) | BELOW(eight, 0x20) | eight) & EACH(0x80))
            break;
    }
    while (at < stop && b[at] >= 0x20 && b[at] < 0x80 && b[at] != '"' && b[at] != '\\')
        at++;
    return at < stop && b[at] == '"' ? at : -1;
}

static int64_t figures_end(const uint8_t *b, int64_t at, int64_t stop)
{
    while (at < stop && b[at] >= '0' && b[at] <= '9')
        at++;
    return at;
}

/* The end of a number of few digits without an exponent; -1 otherwise. */
static int64_t number_end(const uint8_t *b, int64_t at, int64_t stop)
{
    int64_t first = at += b[at] == '-';
    at = figures_end(b, at, stop);
    if (at == first || (b[first] == '0' && at > first + 1))
        return -1;
    if (at < stop && b[at] == '.') {
        int64_t point = at;
        at = figures_end(b, at + 1, stop);
        if (at == point + 1)
            return -1;
    }
    return at - first > MOST_FIGURES || (at < stop && (b[at] | 0x20) == 'e') ? -1 : at;
}

static int64_t word_end(const uint8_t *b, int64_t at, int64_t stop)
{
    const char *word = b[at] == 't' ? "true" : b[at] == 'f' ? "false" : "null";
    int64_t length = (int64_t)strlen(word);
    return length <= stop - at && !memcmp(b + at, word, (size_t)length) ? at + length : -1;
}

/* The end of a text, number, true, false or null; -1 for anything else, or unusual. */
static int64_t scalar_end(const uint8_t *b, int64_t at, int64_t stop)
{
    if (at >= stop)
        return -1;
    if (b[at] == '"') {
        int64_t end = text_end(b, at + 1, stop);
        return end < 0 ? -1 : end + 1;
    }
    return b[at] == '-' || (b[at] >= '0' && b[at] <= '9') ? number_end(b, at, stop) : word_end(b, at, stop);
}

/* Finds the text of an object's member: the place of its characters, and their number, -1 without the member or for
 * null. UNSURE = the object is not JSON, or has anything that this does not read, such as an escape: have all of it
 * parsed. Of members with the same name the last one counts. */
static int64_t member(const uint8_t *b, int64_t at, int64_t stop, const uint8_t *name, int64_t size, int64_t *found)
{
    uint8_t closes[DEEPEST];
    int depth = 0;
    int64_t length = -1;
    at = behind_space(b, at, stop);
    if (at >= stop || b[at] != '{')
        return UNSURE;
    for (;;) { /* at a value */
        int opened = 0, wanted = 0;
        if (at < stop && (b[at] == '{' || b[at] == '[')) {
            if (depth == DEEPEST)
                return UNSURE;
            closes[depth++] = b[at] == '{' ? '}' : ']';
            at = behind_space(b, at + 1, stop);
            opened = 1;
        } else if ((at = scalar_end(b, at, stop)) < 0) {
            return UNSURE;
        }
        for (;;) { /* behind a value, or at the beginning of an object or array */
            at = behind_space(b, at, stop);
            if (at >= stop)
                return UNSURE;
            if (b[at] == closes[depth - 1]) {
                at++;
                opened = 0;
                if (--depth == 0)
                    return behind_space(b, at, stop) == stop ? length : UNSURE;
                continue;
            }
            if (!opened && b[at] != ',')
                return UNSURE;
            at = opened ? at : behind_space(b, at + 1, stop);
            break;
        }
        if (closes[depth - 1] == '}') {
            int64_t begin = at + 1, end = at < stop && b[at] == '"' ? text_end(b, begin, stop) : -1;
            if (end < 0)
                return UNSURE;
            wanted = depth == 1 && end - begin == size && !memcmp(b + begin, name, (size_t)size);
            at = behind_space(b, end + 1, stop);
            if (at >= stop || b[at] != ':')
                return UNSURE;
            at = behind_space(b, at + 1, stop);
        }
        if (wanted) {
            if (at < stop && b[at] == '"') {
                int64_t end = text_end(b, at + 1, stop);
                *found = at + 1;
                length = end - *found; /* of an end that is not found nothing is returned: see scalar_end */
            } else if (at < stop && b[at] == 'n') {
                length = -1;
            } else {
                return UNSURE;
            }
        }
    }
}

/* For each JSON object: where the text of a member begins, and how long it is. See `member`. Returns how many are
 * unsure. */
int64_t lapse_members(const uint8_t *b, const int32_t *begins, const int32_t *lengths, int64_t count,
                      const uint8_t *name, int64_t size, int32_t *at, int32_t *length)
{
    int64_t unsure = 0;
    for (int64_t i = 0; i < count; i++) {
        int64_t found = begins[i];
        length[i] = lengths[i] < 0 ? -1 : (int32_t)member(b, begins[i], (int64_t)begins[i] + lengths[i], name, size, &found);
        at[i] = (int32_t)found;
        unsure += length[i] == UNSURE;
    }
    return unsure;
}

-- Wireshark dissector for Tautline.
--
--   wireshark -X lua_script:extras/wireshark/tautline.lua
--
-- A heuristic recognises Tautline in UDP payloads; for others use "Decode As… tautline". The tables LAYOUT are
-- those of crates/wire (`tautline_wire::layout`). crates/wire/tests/dissector.rs compares them, so keep one field
-- per line.

local tautline = Proto("tautline", "Tautline")

-- LAYOUT frame: name, offset, size
local FRAME = {
    { "kind", 0, 1 },
    { "flags", 1, 1 },
    { "ext_len", 2, 2 },
    { "channel", 4, 4 },
    { "packet", 8, 8 },
    { "slot", 16, 4 },
    { "ack", 20, 4 },
    { "credit", 24, 4 },
    { "echo", 28, 4 },
    { "residence", 32, 4 },
    { "duplicates", 36, 4 },
    { "tag", 40, 8 },
}

-- LAYOUT handshake: name, offset, size
local HANDSHAKE = {
    { "kind", 0, 1 },
    { "flags", 1, 1 },
    { "reason_or_port", 2, 2 },
    { "magic", 4, 4 },
    { "version_min", 8, 1 },
    { "version_max", 9, 1 },
    { "security", 10, 1 },
    { "reserved", 11, 1 },
    { "features", 12, 4 },
    { "job", 16, 8 },
    { "from", 24, 4 },
    { "to", 28, 4 },
    { "from_lane", 32, 2 },
    { "to_lane", 34, 2 },
    { "channel", 36, 4 },
    { "epoch", 40, 8 },
    { "peer_epoch", 48, 8 },
    { "max_frame", 56, 4 },
    { "credit", 60, 4 },
    { "buffer", 64, 4 },
    { "message_window", 68, 4 },
    { "silence_ms", 72, 4 },
    { "ack_delay_us", 76, 4 },
    { "cookie", 80, 16 },
    { "mac", 96, 16 },
}

-- LAYOUT record: name, offset, size
local RECORD = {
    { "kind", 0, 1 },
    { "flags", 1, 1 },
    { "handler", 2, 2 },
    { "len", 4, 4 },
    { "message", 8, 4 },
    { "aux", 12, 4 },
    { "wide", 16, 8 },
}

local KINDS = {
    [0x71] = "Data",
    [0x72] = "Hello",
    [0x73] = "Welcome",
    [0x74] = "Retry",
    [0x75] = "Refuse",
    [0x76] = "Close",
}
local REASONS = {
    [0] = "none",
    [1] = "no common protocol version",
    [2] = "different security modes",
    [3] = "another rank has that address",
    [4] = "no such lane",
    [5] = "table full",
    [6] = "required feature missing",
}
local SECURITY = { [0] = "open", [1] = "fabric", [2] = "sealed" }
local RECORDS = {
    "Short",
    "First",
    "More",
    "Abort",
    "Window",
    "Handlers",
    "Loan",
    "Loan more",
    [16] = "Open",
    [17] = "Put",
    [18] = "Part",
    [19] = "Notice",
    [20] = "Get",
    [21] = "Swap",
    [22] = "Add",
    [23] = "Compare and swap",
    [24] = "Flush",
    [25] = "Out of band",
    [26] = "Done",
    [27] = "Failed",
    [28] = "Value",
    [29] = "Data",
    [30] = "Loaned part",
}
local REFUSALS = {
    [1] = "no such cookie was issued",
    [2] = "of an earlier incarnation of its owner",
    [3] = "revoked",
    [4] = "expired",
    [5] = "out of range",
    [6] = "not allowed",
    [7] = "misaligned",
}
local FIRST_MEMORY, LAST_MEMORY = 16, 30

-- The body of a record, between header and data: name, offset from the end of the header, size.
local TARGET = { { "handle", 0, 4 }, { "id", 4, 4 }, { "at", 8, 8 } }
local function target(...)
    local body = { TARGET[1], TARGET[2], TARGET[3] }
    for _, entry in ipairs({ ... }) do
        body[#body + 1] = entry
    end
    return body
end
local BODIES = {
    [7] = { { "bytes", 0, 8 } },
    [8] = { { "number", 0, 8 }, { "pool_offset", 8, 8 } },
    [16] = { { "handle", 0, 4 }, { "cookie", 4, 4 }, { "incarnation", 8, 8 }, { "secret", 16, 16 } },
    [17] = target(),
    [18] = target({ "rest", 16, 8 }),
    [19] = target({ "bytes", 16, 8 }, { "value", 24, 8 }),
    [20] = target({ "bytes", 16, 8 }),
    [21] = target({ "value", 16, 8 }),
    [22] = target({ "value", 16, 8 }),
    [23] = target({ "expected", 16, 8 }, { "value", 24, 8 }),
    [24] = { { "id", 0, 4 }, { "unused", 4, 4 } },
    [25] = {},
    [26] = { { "id", 0, 4 }, { "unused", 4, 4 } },
    [27] = { { "id", 0, 4 }, { "why", 4, 4 } },
    [28] = { { "id", 0, 4 }, { "unused", 4, 4 }, { "value", 8, 8 } },
    [29] = { { "id", 0, 4 }, { "unused", 4, 4 }, { "at", 8, 8 } },
    [30] = target({ "rest", 16, 8 }, { "loan", 24, 4 }, { "extent_len", 28, 4 }, { "pool_offset", 32, 8 }),
}
local EXTENSIONS = { [1] = "Sack", [2] = "Pad", [3] = "Pace", [128] = "Fragment" }
local MAGIC = 0x54554154 -- "TAUT" as a little-endian number
local HEADER_LEN, HANDSHAKE_LEN, SHORT_LEN, LONG_LEN, SEAL_LEN = 48, 112, 8, 24, 16
local SLOT, ACK_REQUESTED, SEALED, CLOSE_REPLY, RAW = 0x01, 0x02, 0x04, 0x08, 0x10

local NAMED = {
    ["frame.kind"] = KINDS,
    ["handshake.kind"] = KINDS,
    ["handshake.reason_or_port"] = REASONS,
    ["handshake.security"] = SECURITY,
    ["record.kind"] = RECORDS,
    ["memory.why"] = REFUSALS,
}
local HEX = {
    flags = true,
    tag = true,
    features = true,
    job = true,
    epoch = true,
    peer_epoch = true,
    incarnation = true,
    magic = true,
}

-- One ProtoField per line of a table, named tautline.<table>.<field>.
local fields = {}
local function declare(prefix, layout)
    for _, entry in ipairs(layout) do
        local name, size = entry[1], entry[3]
        local abbrev = "tautline." .. prefix .. "." .. name
        local radix = HEX[name] and base.HEX or base.DEC
        local key = prefix .. "." .. name
        if size == 1 then
            fields[key] = ProtoField.uint8(abbrev, name, radix, NAMED[key])
        elseif size == 2 then
            fields[key] = ProtoField.uint16(abbrev, name, radix, NAMED[key])
        elseif size == 4 then
            fields[key] = ProtoField.uint32(abbrev, name, radix, NAMED[key])
        elseif size == 8 then
            fields[key] = ProtoField.uint64(abbrev, name, radix)
        else
            fields[key] = ProtoField.bytes(abbrev, name)
        end
    end
end
declare("frame", FRAME)
declare("handshake", HANDSHAKE)
declare("record", RECORD)
for _, body in pairs(BODIES) do
    for _, entry in ipairs(body) do
        if fields["memory." .. entry[1]] == nil then
            declare("memory", { entry })
        end
    end
end

local function flag(name, text, mask)
    fields["flag." .. name] = ProtoField.bool("tautline.flags." .. name, text, 8, nil, mask)
end
flag("slot", "Carries a slot", SLOT)
flag("ack_requested", "Requests an acknowledgement", ACK_REQUESTED)
flag("sealed", "Sealed", SEALED)
flag("close_reply", "Replies to a close", CLOSE_REPLY)
flag("raw", "Accepts raw frames", RAW)

fields.ext_kind = ProtoField.uint8("tautline.ext.kind", "Extension", base.DEC, EXTENSIONS)
fields.sack = ProtoField.bytes("tautline.ext.sack", "Selective acknowledgement")
fields.sack_slot = ProtoField.uint32("tautline.ext.sack.slot", "Received slot")
fields.pace = ProtoField.uint16("tautline.ext.pace", "Pace of heartbeats")
fields.fragment_offset = ProtoField.uint32("tautline.ext.fragment.offset", "Offset in the slot")
fields.fragment_total = ProtoField.uint32("tautline.ext.fragment.total", "Bytes of the slot")
fields.payload = ProtoField.bytes("tautline.payload", "Payload")
fields.data = ProtoField.bytes("tautline.record.data", "Data")
fields.seal = ProtoField.bytes("tautline.seal", "Seal")

local list = {}
for _, field in pairs(fields) do
    list[#list + 1] = field
end
tautline.fields = list

local malformed = ProtoExpert.new("tautline.malformed", "Malformed", expert.group.MALFORMED, expert.severity.WARN)
tautline.experts = { malformed }

local function add_fields(tree, prefix, layout, buffer, until_offset)
    for _, entry in ipairs(layout) do
        local name, offset, size = entry[1], entry[2], entry[3]
        if offset + size <= until_offset then
            tree:add_le(fields[prefix .. "." .. name], buffer(offset, size))
        end
    end
end

local function add_sack(tree, buffer, ack)
    tree:add(fields.sack, buffer)
    for byte = 0, buffer:len() - 1 do
        local bits = buffer(byte, 1):uint()
        for bit = 0, 7 do
            if math.floor(bits / 2 ^ bit) % 2 == 1 then
                -- Slot `ack` itself is missing.
                local slot = (ack + 1 + 8 * byte + bit) % 2 ^ 32
                tree:add(fields.sack_slot, buffer(byte, 1), slot)
            end
        end
    end
end

-- Adds the extensions. Returns whether the payload is a fragment.
local function add_extensions(tree, buffer, ack)
    local at, fragment = 0, false
    while at + 2 <= buffer:len() do
        local kind, len = buffer(at, 1):uint(), buffer(at + 1, 1):uint()
        local padded = math.ceil((2 + len) / 4) * 4
        if at + padded > buffer:len() then
            tree:add_proto_expert_info(malformed)
            return fragment
        end
        local name = EXTENSIONS[kind] or "Unknown"
        local ext = tree:add(buffer(at, padded), "Extension: " .. name)
        ext:add(fields.ext_kind, buffer(at, 1))
        if kind == 1 and len > 0 then
            add_sack(ext, buffer(at + 2, len), ack)
        elseif kind == 3 and len == 2 then
            ext:add_le(fields.pace, buffer(at + 2, 2))
        elseif kind == 128 and len == 10 then
            fragment = true
            ext:add_le(fields.fragment_offset, buffer(at + 4, 4))
            ext:add_le(fields.fragment_total, buffer(at + 8, 4))
        end
        at = at + padded
    end
    return fragment
end

local function add_records(tree, buffer)
    local at, count = 0, 0
    while at + SHORT_LEN <= buffer:len() do
        local kind, len = buffer(at, 1):uint(), buffer(at + 4, 4):le_uint()
        local memory = kind >= FIRST_MEMORY and kind <= LAST_MEMORY
        local head = (memory or kind == 1 or kind == 6) and SHORT_LEN or LONG_LEN
        if RECORDS[kind] == nil or at + head + len > buffer:len() then
            break
        end
        local record = tree:add(tautline, buffer(at, head + len), "Record: " .. RECORDS[kind])
        add_fields(record, "record", RECORD, buffer(at, head), head)
        local body = 0
        for _, entry in ipairs(BODIES[kind] or {}) do
            body = math.max(body, entry[2] + entry[3])
        end
        if body > len then
            record:add_proto_expert_info(malformed)
        elseif body > 0 then
            add_fields(record, "memory", BODIES[kind], buffer(at + head, body), body)
        end
        if body < len then
            record:add(fields.data, buffer(at + head + body, len - body))
        end
        at, count = at + head + len, count + 1
    end
    if at < buffer:len() then
        tree:add(buffer(at), "Malformed record"):add_proto_expert_info(malformed)
    end
    return count
end

local function dissect_frame(buffer, pinfo, tree)
    local flags, ext_len = buffer(1, 1):uint(), buffer(2, 2):le_uint()
    local header = tree:add(tautline, buffer(0, HEADER_LEN), "Header")
    add_fields(header, "frame", FRAME, buffer, HEADER_LEN)
    for _, name in ipairs({ "slot", "ack_requested", "sealed", "close_reply", "raw" }) do
        header:add(fields["flag." .. name], buffer(1, 1))
    end
    local body = HEADER_LEN + ext_len
    if body > buffer:len() then
        tree:add_proto_expert_info(malformed)
        return
    end
    local fragment, ack = false, buffer(20, 4):le_uint()
    if ext_len > 0 then
        fragment = add_extensions(tree:add(buffer(HEADER_LEN, ext_len), "Extensions"), buffer(HEADER_LEN, ext_len), ack)
    end
    local info = string.format("slot %u ack %u credit %u", buffer(16, 4):le_uint(), ack, buffer(24, 4):le_uint())
    local has_slot, sealed = flags % 2 == 1, math.floor(flags / SEALED) % 2 == 1
    if sealed and buffer:len() >= body + SEAL_LEN then
        tree:add(fields.seal, buffer(buffer:len() - SEAL_LEN, SEAL_LEN))
    elseif has_slot and fragment and body < buffer:len() then
        tree:add(fields.payload, buffer(body))
    elseif has_slot and body < buffer:len() then
        info = info .. " records " .. add_records(tree, buffer(body):tvb())
    end
    pinfo.cols.info:append(" " .. info)
end

local function dissect_handshake(buffer, pinfo, tree)
    local header = tree:add(tautline, buffer(0, HANDSHAKE_LEN), "Handshake")
    add_fields(header, "handshake", HANDSHAKE, buffer, HANDSHAKE_LEN)
    local info = string.format(" from %u to %u", buffer(24, 4):le_uint(), buffer(28, 4):le_uint())
    pinfo.cols.info:append(info)
end

function tautline.dissector(buffer, pinfo, root)
    if buffer:len() < HEADER_LEN then
        return 0
    end
    local kind = buffer(0, 1):uint()
    local name = KINDS[kind]
    local handshake = kind >= 0x72 and kind <= 0x75
    if name == nil or (handshake and buffer:len() < HANDSHAKE_LEN) then
        return 0
    end
    pinfo.cols.protocol = "Tautline"
    pinfo.cols.info = name
    local tree = root:add(tautline, buffer(), "Tautline " .. name)
    if handshake then
        dissect_handshake(buffer, pinfo, tree)
    else
        dissect_frame(buffer, pinfo, tree)
    end
    return buffer:len()
end

-- Conversations with a handshake in the capture. Without one, the first byte does not suffice to recognise a
-- data frame.
local known = {}
local function conversation(pinfo)
    local a = tostring(pinfo.src) .. ":" .. pinfo.src_port
    local b = tostring(pinfo.dst) .. ":" .. pinfo.dst_port
    return a < b and a .. "/" .. b or b .. "/" .. a
end

local function heuristic(buffer, pinfo, root)
    if buffer:len() < HEADER_LEN or KINDS[buffer(0, 1):uint()] == nil then
        return false
    end
    local kind, key = buffer(0, 1):uint(), conversation(pinfo)
    local handshake = kind >= 0x72 and kind <= 0x75
    if handshake and (buffer:len() < HANDSHAKE_LEN or buffer(4, 4):le_uint() ~= MAGIC) then
        return false
    end
    if handshake then
        known[key] = true
    elseif not known[key] then
        -- Without a handshake, check that no critical flag is set and that the extensions fit.
        local flags, ext_len = buffer(1, 1):uint(), buffer(2, 2):le_uint()
        if flags >= 0x40 or ext_len % 4 ~= 0 or HEADER_LEN + ext_len > buffer:len() then
            return false
        end
    end
    tautline.dissector(buffer, pinfo, root)
    return true
end

tautline:register_heuristic("udp", heuristic)
DissectorTable.get("udp.port"):add_for_decode_as(tautline)

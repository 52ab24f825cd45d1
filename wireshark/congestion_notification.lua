-- Wireshark's view of congestion notification (IEEE 802.1Q, clause 33; formerly 802.1Qau): congestion notification
-- messages (CNM, EtherType 22-E7) and congestion notification tags (CN-TAG, EtherType 22-E9).
--
--   tshark -X lua_script:wireshark/congestion_notification.lua -r FILE
--   wireshark -X lua_script:wireshark/congestion_notification.lua FILE
--
-- The fields are those of crates/wire/src/qcn.rs, where vectors written by hand from the standard are the reference.

local CNM_TYPE, CN_TAG_TYPE = 0x22E7, 0x22E9
-- Bytes of a CNM without the data of the sampled frame, and most bytes of that data.
local FIELDS_LEN, DATA_MAX = 24, 64
-- Bytes of a CN-TAG behind its EtherType: the flow and the inner type.
local TAG_LEN = 4
-- Queue lengths are in units of 64 bytes.
local QUEUE_UNIT = 64

local ethertypes = DissectorTable.get("ethertype")

local tag = Proto("cn_tag", "Congestion Notification Tag")
local flow = ProtoField.uint16("cn_tag.flow", "Flow", base.DEC)
local inner_type = ProtoField.uint16("cn_tag.etype", "Type", base.HEX)
tag.fields = { flow, inner_type }

local cnm = Proto("cnm", "Congestion Notification Message")
local version = ProtoField.uint8("cnm.version", "Version", base.DEC, nil, 0xF0)
local feedback = ProtoField.uint8("cnm.feedback", "Quantized feedback", base.DEC, nil, 0x3F)
local cpid = ProtoField.bytes("cnm.cpid", "Congestion point", base.COLON)
local offset = ProtoField.int16("cnm.qoffset", "Queue offset (64 B)", base.DEC)
local delta = ProtoField.int16("cnm.qdelta", "Queue delta (64 B)", base.DEC)
local offset_bytes = ProtoField.int32("cnm.qoffset_bytes", "Queue offset in bytes", base.DEC)
local delta_bytes = ProtoField.int32("cnm.qdelta_bytes", "Queue delta in bytes", base.DEC)
local priority = ProtoField.uint8("cnm.priority", "Priority of the sampled frame", base.DEC, nil, 0xE0)
local destination = ProtoField.ether("cnm.dst", "Destination of the sampled frame")
local data_len = ProtoField.uint16("cnm.data_len", "Length of its data", base.DEC)
local data = ProtoField.bytes("cnm.data", "First bytes of its data")
cnm.fields = {
    version, feedback, cpid, offset, delta, offset_bytes, delta_bytes, priority, destination, data_len, data,
}
local malformed = ProtoExpert.new("cnm.malformed", "No such message", expert.group.MALFORMED, expert.severity.ERROR)
cnm.experts = { malformed }

function tag.dissector(buffer, pinfo, tree)
    if buffer:len() < TAG_LEN then return 0 end
    local branch = tree:add(tag, buffer(0, TAG_LEN), "Congestion Notification Tag, flow " .. buffer(0, 2):uint())
    branch:add(flow, buffer(0, 2))
    branch:add(inner_type, buffer(2, 2))
    local rest = buffer(TAG_LEN):tvb()
    local dissector = ethertypes:get_dissector(buffer(2, 2):uint()) or Dissector.get("data")
    return TAG_LEN + dissector:call(rest, pinfo, tree)
end

function cnm.dissector(buffer, pinfo, tree)
    pinfo.cols.protocol = "CNM"
    local branch = tree:add(cnm, buffer())
    if buffer:len() < FIELDS_LEN then
        branch:add_proto_expert_info(malformed, "shorter than " .. FIELDS_LEN .. " bytes")
        return buffer:len()
    end
    branch:add(version, buffer(0, 1))
    branch:add(feedback, buffer(1, 1))
    branch:add(cpid, buffer(2, 8))
    branch:add(offset, buffer(10, 2))
    branch:add(delta, buffer(12, 2))
    local of, de = buffer(10, 2):int() * QUEUE_UNIT, buffer(12, 2):int() * QUEUE_UNIT
    branch:add(offset_bytes, buffer(10, 2), of):set_generated()
    branch:add(delta_bytes, buffer(12, 2), de):set_generated()
    branch:add(priority, buffer(14, 1))
    branch:add(destination, buffer(16, 6))
    branch:add(data_len, buffer(22, 2))
    local length = buffer(22, 2):uint()
    if buffer(0, 1):bitfield(0, 4) ~= 0 then
        branch:add_proto_expert_info(malformed, "another version than 0")
    elseif length > DATA_MAX or length > buffer:len() - FIELDS_LEN then
        branch:add_proto_expert_info(malformed, "more data than 64 bytes, or than there is")
        length = 0
    end
    if length > 0 then branch:add(data, buffer(FIELDS_LEN, length)) end
    local about = tostring(buffer(16, 6):ether())
    local fb = buffer(1, 1):bitfield(2, 6)
    branch:append_text(", feedback " .. fb .. ", to " .. about)
    pinfo.cols.info = "feedback " .. fb .. ", queue " .. of .. " B beyond its set point, grown by " .. de
        .. " B; priority " .. buffer(14, 1):bitfield(0, 3) .. " to " .. about
    return FIELDS_LEN + length
end

ethertypes:add(CNM_TYPE, cnm)
ethertypes:add(CN_TAG_TYPE, tag)

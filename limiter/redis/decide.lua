-- Decides all checks of one request in one step.
--
-- KEYS: one counter for each limit of each check, in order.
-- ARGV: number of checks, then for each check
--   algorithm letter, cost, shadow (0|1), countRejected (0|1), queue length, longest wait (µs), number of limits,
--   then for each limit: requests, capacity, window (µs).
-- Returns, flat, for each check: allowed (0|1), delay (µs), then for each limit:
--   fits (0|1), remaining, current, reset (µs), retry (µs; -1 = never).
--
-- Times are integers of microseconds since the epoch by this server's clock; no product exceeds 2^53.

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local floor, max, min = math.floor, math.max, math.min
local WEEK, MONDAY = 604800000000, 345600000000
local MAX_COUNT = 2147483647

local function ceildiv(a, b) return floor((a + b - 1) / b) end

-- floor(a·b/c) and the remainder, for a < c ≤ 2^42: long division by 10 bits of b at a time.
local function muldiv(a, b, c)
  local quotient, rest = 0, 0
  for shift = 4, 0, -1 do
    local digit = floor(b / 1024 ^ shift) % 1024
    local sum = rest * 1024 + a * digit
    local q = floor(sum / c)
    quotient = quotient * 1024 + q
    rest = sum - q * c
  end
  return quotient, rest
end

local function numbers(value)
  local list = {}
  for n in string.gmatch(value, '%d+') do list[#list + 1] = tonumber(n) end
  return list
end

local function text(...)
  local list = { ... }
  for i = 1, #list do list[i] = string.format('%.0f', list[i]) end
  return table.concat(list, ' ')
end

-- A level of units that drains at requests a window: whole + part/window at the time at.
local function drain(v, window)
  if now <= v.at then return end
  local elapsed = now - v.at
  v.at = now
  local windows = floor(elapsed / window)
  if windows > 0 and v.whole < windows * v.requests then
    v.whole, v.part = 0, 0
    return
  end
  local units, part = muldiv(elapsed % window, v.requests, window)
  v.whole = v.whole - windows * v.requests - units
  v.part = v.part - part
  if v.part < 0 then v.part, v.whole = v.part + window, v.whole - 1 end
  if v.whole < 0 then v.whole, v.part = 0, 0 end
end

-- The same fraction of a bucket of another capacity, rounded up.
local function rescale(v, from, to, window)
  local full = floor(v.whole / from)
  local whole, rest = muldiv(v.whole % from, to, from)
  whole = whole + full * to
  local carried, fine = muldiv(v.part, to, window)
  rest = rest + carried
  whole = whole + floor(rest / from)
  local part, rem
  rest = rest % from
  if from <= window then
    local times = floor(window / from)
    part, rem = muldiv(rest, window % from, from)
    part = part + rest * times
  else
    part, rem = muldiv(rest, window, from)
  end
  part = part + floor((rem + fine + from - 1) / from)
  v.whole, v.part = whole + floor(part / window), part % window
end

local function ceillevel(v) return v.part > 0 and v.whole + 1 or v.whole end

-- How long the level takes to sink to target whole units, rounded up.
local function untillevel(v, target, t)
  local above = v.whole - target
  if above < 0 or (above == 0 and v.part == 0) then return 0 end
  local rest = above % t.requests
  local wait, rem = muldiv(rest, t.window, t.requests)
  return floor(above / t.requests) * t.window + wait + ceildiv(rem + v.part, t.requests)
end

-- Reads the level and lets it sink until now; an edit of requests takes effect with the first call that knows of it.
local function loadlevel(c, t)
  if not c.value then return { at = now, whole = 0, part = 0, capacity = 0, requests = t.requests } end
  local n = numbers(c.value)
  local v = { at = n[1], whole = n[2], part = n[3], capacity = n[4], requests = n[5] }
  drain(v, t.window)
  c.edited = v.requests ~= t.requests
  v.requests = t.requests
  return v
end

local bucket = {}

function bucket.advance(c, t)
  local v = loadlevel(c, t)
  if v.capacity > 0 and t.capacity > 0 and v.capacity ~= t.capacity then
    rescale(v, v.capacity, t.capacity, t.window)
    c.edited = true
  end
  if t.capacity > 0 then v.capacity = t.capacity end
  c.level = v
end

function bucket.fits(c, t, cost)
  return t.requests > 0 and ceillevel(c.level) + cost <= t.capacity
end

function bucket.add(c, t, cost) c.level.whole = c.level.whole + cost end

function bucket.standing(c, t, cost)
  local current = ceillevel(c.level)
  if t.requests == 0 then return 0, current, 0, -1, 0 end
  local retry = -1
  if cost <= t.capacity then retry = untillevel(c.level, t.capacity - cost, t) end
  return max(0, t.capacity - current), current, untillevel(c.level, 0, t), retry, 0
end

function bucket.save(c, t)
  local v = c.level
  return text(v.at, v.whole, v.part, v.capacity, v.requests), t.requests == 0 and t.window or untillevel(v, 0, t)
end

local leaky = {}

function leaky.advance(c, t) c.level = loadlevel(c, t) end

function leaky.fits(c, t)
  return t.requests > 0 and ceillevel(c.level) <= t.queue and untillevel(c.level, 0, t) <= t.maxwait
end

leaky.add = bucket.add

function leaky.standing(c, t)
  local current = ceillevel(c.level)
  if t.requests == 0 then return 0, current, 0, -1, 0 end
  local reset = untillevel(c.level, 0, t)
  return max(0, t.queue + 1 - current), current, reset,
    max(untillevel(c.level, t.queue, t), reset - t.maxwait, 0), reset
end

leaky.save = bucket.save

local function windowstart(at, window)
  local offset = window % WEEK == 0 and MONDAY or 0
  return floor((at - offset) / window) * window + offset
end

local fixed = {}

function fixed.advance(c, t)
  local n = c.value and numbers(c.value) or { 0, 0 }
  c.start, c.count = n[1], n[2]
  c.now = max(now, c.start)
  local start = windowstart(c.now, t.window)
  if start ~= c.start then c.start, c.count = start, 0 end
end

function fixed.fits(c, t, cost) return c.count + cost <= t.requests end

function fixed.add(c, t, cost) c.count = min(c.count + cost, MAX_COUNT) end

function fixed.standing(c, t, cost)
  local rest = c.start + t.window - c.now
  local retry = -1
  if fixed.fits(c, t, cost) then retry = 0 elseif cost <= t.requests then retry = rest end
  return max(0, t.requests - c.count), c.count, c.count > 0 and rest or 0, retry, 0
end

function fixed.save(c, t) return text(c.start, c.count), c.start + t.window - c.now end

local counter = {}

function counter.advance(c, t)
  local n = c.value and numbers(c.value) or { 0, 0, 0 }
  c.start, c.count, c.previous = n[1], n[2], n[3]
  c.now = max(now, c.start)
  local start = windowstart(c.now, t.window)
  if start == c.start then return end
  c.previous = start == c.start + t.window and c.count or 0
  c.start, c.count = start, 0
end

local function counted(c, t)
  local overlap = c.start + t.window - c.now
  if overlap == t.window then return c.previous + c.count end
  local weighted, rem = muldiv(overlap, c.previous, t.window)
  return weighted + (rem > 0 and 1 or 0) + c.count
end

-- The longest overlap at which count weighs at most room.
local function covered(room, count, window)
  if count <= room then return window end
  return (muldiv(room, window, count))
end

function counter.fits(c, t, cost) return counted(c, t) + cost <= t.requests end

counter.add = fixed.add

local function counterends(c, t)
  if c.count > 0 then return c.start + 2 * t.window end
  if c.previous > 0 then return c.start + t.window end
  return c.now
end

function counter.standing(c, t, cost)
  local current = counted(c, t)
  local retry = -1
  if cost <= t.requests and t.requests > 0 then
    local rest, room = c.start + t.window - c.now, t.requests - cost
    if c.count <= room then
      retry = max(0, rest - covered(room - c.count, c.previous, t.window))
    else
      retry = rest + t.window - covered(room, c.count, t.window)
    end
  end
  return max(0, t.requests - current), current, max(0, counterends(c, t) - c.now), retry, 0
end

function counter.save(c, t) return text(c.start, c.count, c.previous), counterends(c, t) - c.now end

-- The log: eight bytes of base (in ticks), then four bytes for each unit, its distance from base, ascending.
local log = {}

local function stamp(c, i) return c.base + struct.unpack('>I4', c.entries, (i - 1) * 4 + 1) end

function log.advance(c, t)
  c.tick = ceildiv(t.window, 2147483648)
  c.span = ceildiv(t.window, c.tick)
  c.base, c.entries, c.now = 0, '', now
  if c.value then
    local high, low = struct.unpack('>I4I4', c.value)
    c.base, c.entries = high * 4294967296 + low, string.sub(c.value, 9)
  end
  local n = #c.entries / 4
  if n > 0 then c.now = max(now, (stamp(c, n) - 1) * c.tick + 1) end
  local oldest = floor(c.now / c.tick) - c.span
  local first, last = 1, n + 1
  while first < last do
    local middle = floor((first + last) / 2)
    if stamp(c, middle) > oldest then last = middle else first = middle + 1 end
  end
  c.entries = string.sub(c.entries, (first - 1) * 4 + 1)
  c.live = n - first + 1
end

function log.fits(c, t, cost) return c.live + cost <= t.requests end

-- Moves the base to the oldest entry before distances wrap.
local function rebase(c, newest)
  if c.live == 0 then c.base = newest return end
  if newest - c.base < 4294967296 then return end
  local base, moved = stamp(c, 1), {}
  for i = 1, c.live do moved[i] = struct.pack('>I4', stamp(c, i) - base) end
  c.base, c.entries = base, table.concat(moved)
end

function log.add(c, t, cost)
  local bound = max(t.requests, c.live)
  local newest, added = ceildiv(c.now, c.tick), min(cost, bound)
  rebase(c, newest)
  c.entries = c.entries .. string.rep(struct.pack('>I4', newest - c.base), added)
  c.live = c.live + added
  if c.live > bound then
    c.entries = string.sub(c.entries, (c.live - bound) * 4 + 1)
    c.live = bound
  end
end

local function leaves(c, i) return (stamp(c, i) + c.span) * c.tick - c.now end

function log.standing(c, t, cost)
  local retry = -1
  if cost <= t.requests and t.requests > 0 then
    local over = c.live + cost - t.requests
    retry = over > 0 and leaves(c, over) or 0
  end
  return max(0, t.requests - c.live), c.live, c.live > 0 and leaves(c, c.live) or 0, retry, 0
end

function log.save(c)
  local high = floor(c.base / 4294967296)
  return struct.pack('>I4I4', high, c.base - high * 4294967296) .. c.entries, c.live > 0 and leaves(c, c.live) or 0
end

local algorithms = { t = bucket, l = leaky, f = fixed, s = log, c = counter }

local position = 1
local function take()
  position = position + 1
  return tonumber(ARGV[position])
end

local function readcheck(first)
  local check = { algorithm = algorithms[ARGV[position + 1]], limits = {} }
  position = position + 1
  check.cost, check.shadow, check.rejected = take(), take() == 1, take() == 1
  local queue, maxwait, limits = take(), take(), take()
  for i = 1, limits do
    local t = { requests = take(), capacity = take(), window = take(), queue = queue, maxwait = maxwait }
    check.limits[i] = { terms = t, key = KEYS[first + i], value = redis.call('GET', KEYS[first + i]) }
  end
  return check
end

local checks, used, admitted = {}, 0, true
for i = 1, tonumber(ARGV[1]) do
  local check = readcheck(used)
  used = used + #check.limits
  check.allowed, check.capacity = true, MAX_COUNT
  for _, c in ipairs(check.limits) do
    check.algorithm.advance(c, c.terms)
    c.fits = check.algorithm.fits(c, c.terms, max(1, check.cost))
    check.allowed = check.allowed and c.fits
  end
  if not check.allowed and not check.shadow then admitted = false end
  checks[i] = check
end

local function charges(check, t)
  if not check.allowed then return check.rejected and max(1, check.cost) <= t.capacity end
  return admitted or check.shadow
end

local function settle(check, c, reply)
  local algorithm, t, asked = check.algorithm, c.terms, max(1, check.cost)
  local _, _, _, _, delay = algorithm.standing(c, t, asked)
  local charged = check.cost > 0 and charges(check, t)
  if charged then algorithm.add(c, t, check.cost) end
  if charged or c.edited then
    local value, life = algorithm.save(c, t)
    redis.call('SET', c.key, value, 'PX', max(1, ceildiv(life, 1000)))
  end
  local remaining, current, reset, retry = algorithm.standing(c, t, asked)
  reply[#reply + 1] = c.fits and 1 or 0
  reply[#reply + 1] = remaining
  reply[#reply + 1] = current
  reply[#reply + 1] = reset
  reply[#reply + 1] = retry
  return (check.allowed and check.cost > 0) and delay or 0
end

local reply = {}
for _, check in ipairs(checks) do
  reply[#reply + 1] = check.allowed and 1 or 0
  reply[#reply + 1] = 0
  local place = #reply
  for _, c in ipairs(check.limits) do reply[place] = max(reply[place], settle(check, c, reply)) end
end
return reply

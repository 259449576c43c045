-- What every script of this package begins with: reading arguments, and the algorithms: how a counter is brought to the
-- present, charged, described and written.
--
-- Every call of a script makes its functions anew, so that those of an algorithm are made only where it is used.
--
-- Times are integers of microseconds since the epoch by this server's clock; no product exceeds 2^53.

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local floor, max, min = math.floor, math.max, math.min
local WEEK, MONDAY = 604800000000, 345600000000
local MAX_COUNT, LONGEST = 2147483647, 4503599627370496
local LEVEL, COUNTS = '>I7I6I6I4I4', '>I7I4I4'

local function ceildiv(a, b) return floor((a + b - 1) / b) end

-- floor(a·b/c) and the remainder, for a < c ≤ 2^42: at once, or by long division by 10 bits of b at a time.
local function muldiv(a, b, c)
  local product = a * b
  if product < 9007199254740992 then
    local q = floor(product / c)
    local rem = product - q * c
    if rem < 0 then return q - 1, rem + c end
    return q, rem
  end
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

local function write(key, value, life) redis.call('SET', key, value, 'PX', max(1, ceildiv(life, 1000))) end

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

local function buckets(queues)
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

  -- How long the level takes to sink to target whole units, rounded up; no longer than can be counted.
  local function untillevel(v, target, t)
    local above = v.whole - target
    if above < 0 or (above == 0 and v.part == 0) then return 0 end
    local windows = floor(above / t.requests)
    if windows >= floor(LONGEST / t.window) then return LONGEST end
    local wait, rem = muldiv(above % t.requests, t.window, t.requests)
    return windows * t.window + wait + ceildiv(rem + v.part, t.requests)
  end

  -- Reads the level and lets it sink until now; an edit of requests takes effect with the first call that knows of it.
  local function loadlevel(c, t)
    if not c.value then return { at = now, whole = 0, part = 0, capacity = 0, requests = t.requests } end
    local at, whole, part, capacity, requests = struct.unpack(LEVEL, c.value)
    local v = { at = at, whole = whole, part = part, capacity = capacity, requests = requests }
    drain(v, t.window)
    c.edited = v.requests ~= t.requests
    v.requests = t.requests
    return v
  end

  local function addlevel(c, _, cost) c.level.whole = c.level.whole + cost end

  local function savelevel(c, t)
    local v = c.level
    local value = struct.pack(LEVEL, v.at, v.whole, v.part, v.capacity, v.requests)
    return value, t.requests == 0 and t.window or untillevel(v, 0, t)
  end

  if queues then
    local leaky = { add = addlevel, save = savelevel }

    function leaky.advance(c, t) c.level = loadlevel(c, t) end

    function leaky.fits(c, t)
      return t.requests > 0 and ceillevel(c.level) <= t.queue and untillevel(c.level, 0, t) <= t.maxwait
    end

    function leaky.standing(c, t)
      local current = ceillevel(c.level)
      if t.requests == 0 then return 0, current, 0 end
      return max(0, t.queue + 1 - current), current, untillevel(c.level, 0, t)
    end

    function leaky.retry(c, t)
      if t.requests == 0 then return -1 end
      return max(untillevel(c.level, t.queue, t), untillevel(c.level, 0, t) - t.maxwait, 0)
    end

    -- The caller departs when the backlog before it is gone.
    function leaky.delay(c, t) return untillevel(c.level, 0, t) end

    -- Only the last reservation can go without moving others; it is the last if the backlog ends when it did then.
    function leaky.takeback(c, t, cost, ending)
      local v = c.level
      if c.edited or t.requests == 0 or v.at + untillevel(v, 0, t) ~= ending then return false end
      v.whole = v.whole - cost
      if v.whole < 0 then v.whole, v.part = 0, 0 end
      return true
    end

    return leaky
  end

  local bucket = { add = addlevel, save = savelevel }

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

  function bucket.standing(c, t)
    local current = ceillevel(c.level)
    if t.requests == 0 then return 0, current, 0 end
    return max(0, t.capacity - current), current, untillevel(c.level, 0, t)
  end

  function bucket.retry(c, t, cost)
    if t.requests == 0 or cost > t.capacity then return -1 end
    return untillevel(c.level, t.capacity - cost, t)
  end

  -- What has drained since might have drained other units, had this one not been there: only the rest is given back.
  function bucket.takeback(c, t, cost, at)
    if c.edited or t.requests == 0 then return false end
    local elapsed = max(0, now - at)
    local windows = floor(elapsed / t.window)
    if windows * t.requests >= cost then return false end
    local units, rem = muldiv(elapsed % t.window, t.requests, t.window)
    local back = cost - windows * t.requests - units - (rem > 0 and 1 or 0)
    if back <= 0 then return false end
    local v = c.level
    v.whole = v.whole - back
    if v.whole < 0 then v.whole, v.part = 0, 0 end
    return true
  end

  return bucket
end

local function windows(slides)
  local function windowstart(at, window)
    local offset = window % WEEK == 0 and MONDAY or 0
    return floor((at - offset) / window) * window + offset
  end

  -- The start of the window that is counted, its count and, where that matters, the previous one's.
  local function loadcounts(c)
    if not c.value then
      c.start, c.count, c.previous = 0, 0, 0
    else
      c.start, c.count, c.previous = struct.unpack(COUNTS, c.value)
    end
    c.now = max(now, c.start)
  end

  local function addcount(c, _, cost) c.count = min(c.count + cost, MAX_COUNT) end

  if not slides then
    local fixed = { add = addcount }

    function fixed.advance(c, t)
      loadcounts(c)
      local start = windowstart(c.now, t.window)
      if start ~= c.start then c.start, c.count = start, 0 end
    end

    function fixed.fits(c, t, cost) return c.count + cost <= t.requests end

    function fixed.standing(c, t)
      local rest = c.start + t.window - c.now
      return max(0, t.requests - c.count), c.count, c.count > 0 and rest or 0
    end

    function fixed.retry(c, t, cost)
      if fixed.fits(c, t, cost) then return 0 end
      return cost <= t.requests and c.start + t.window - c.now or -1
    end

    function fixed.takeback(c, t, cost, at)
      if windowstart(at, t.window) ~= c.start then return false end
      c.count = max(0, c.count - cost)
      return true
    end

    function fixed.save(c, t) return struct.pack(COUNTS, c.start, c.count, 0), c.start + t.window - c.now end

    return fixed
  end

  local counter = { add = addcount }

  function counter.advance(c, t)
    loadcounts(c)
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

  local function counterends(c, t)
    if c.count > 0 then return c.start + 2 * t.window end
    if c.previous > 0 then return c.start + t.window end
    return c.now
  end

  function counter.standing(c, t)
    local current = counted(c, t)
    return max(0, t.requests - current), current, max(0, counterends(c, t) - c.now)
  end

  function counter.retry(c, t, cost)
    if cost > t.requests or t.requests == 0 then return -1 end
    local rest, room = c.start + t.window - c.now, t.requests - cost
    if c.count <= room then return max(0, rest - covered(room - c.count, c.previous, t.window)) end
    return rest + t.window - covered(room, c.count, t.window)
  end

  function counter.takeback(c, t, cost, at)
    local start = windowstart(at, t.window)
    if start == c.start then
      c.count = max(0, c.count - cost)
    elseif start == c.start - t.window then
      c.previous = max(0, c.previous - cost)
    else
      return false
    end
    return true
  end

  function counter.save(c, t)
    return struct.pack(COUNTS, c.start, c.count, c.previous), counterends(c, t) - c.now
  end

  return counter
end

-- The log: eight bytes of base (in ticks), then four bytes for each unit, its distance from base, ascending.
local function logs()
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

  function log.standing(c, t)
    return max(0, t.requests - c.live), c.live, c.live > 0 and leaves(c, c.live) or 0
  end

  function log.retry(c, t, cost)
    if cost > t.requests or t.requests == 0 then return -1 end
    local over = c.live + cost - t.requests
    return over > 0 and leaves(c, over) or 0
  end

  -- Entries of one stamp are alike: as many go as were added then.
  function log.takeback(c, t, cost, at)
    local wanted, last = ceildiv(at, c.tick), c.live
    while last > 0 and stamp(c, last) > wanted do last = last - 1 end
    local first = last
    while first > 0 and last - first < cost and stamp(c, first) == wanted do first = first - 1 end
    if first == last then return false end
    c.entries = string.sub(c.entries, 1, first * 4) .. string.sub(c.entries, last * 4 + 1)
    c.live = c.live - (last - first)
    return true
  end

  function log.save(c)
    local high = floor(c.base / 4294967296)
    return struct.pack('>I4I4', high, c.base - high * 4294967296) .. c.entries, c.live > 0 and leaves(c, c.live) or 0
  end

  return log
end

local made = {}

local function algorithm(letter)
  local known = made[letter]
  if known then return known end
  if letter == 't' then
    known = buckets(false)
  elseif letter == 'l' then
    known = buckets(true)
  elseif letter == 'f' then
    known = windows(false)
  elseif letter == 'c' then
    known = windows(true)
  else
    known = logs()
  end
  made[letter] = known
  return known
end

local position = 0
local function take()
  position = position + 1
  return tonumber(ARGV[position])
end

-- Charges what a holder of leased units used, decides the callers that wait with it, and leases units to it, in one step.
--
-- KEYS: the leases, then one counter for each limit.
-- ARGV: holder, units used since its last call, time of the last of these uses, units that it keeps, units that it wants,
--   life of a lease (µs), algorithm letter, number of limits, for each limit: requests, capacity, window (µs);
--   number of asks, for each: cost, callers.
-- Returns, as text: the time (µs), whether the kept units are still leased (0|1), units leased on top, for each ask: callers
--   admitted, then for each limit: remaining, current, reset (µs), retry of the largest cost that was refused, or of 1 if
--   nothing is left (µs; 0 = none).
--
-- The leases are a list of holder, units, end; the units may be used at any time before the end. What is granted is
-- bounded by what was used and all that is leased, so no use can come that the limits have no room for. See
-- docs/accuracy.md for the proof.

local UNBOUNDED = { requests = MAX_COUNT }

local holder, used, lastuse, kept, want, life = take(), take(), take(), take(), take(), take()
position = position + 1
local algorithm, limits = algorithm(ARGV[position]), {}
for i = 1, take() do
  limits[i] = {
    terms = { requests = take(), capacity = take(), window = take() },
    key = KEYS[i + 1], value = redis.call('GET', KEYS[i + 1]),
  }
end

local known = redis.call('GET', KEYS[1])

local function readleases()
  local list, n = {}, numbers(known or '')
  now = max(now, n[1] or 0)
  for i = 2, #n, 3 do list[#list + 1] = { holder = n[i], units = n[i + 1], ends = n[i + 2] } end
  table.sort(list, function(a, b) return a.ends < b.ends end)
  return list
end

local function advance()
  for _, c in ipairs(limits) do
    algorithm.advance(c, c.terms)
    c.changed = c.changed or c.edited
  end
end

local function add(units, t)
  for _, c in ipairs(limits) do
    algorithm.add(c, t or c.terms, units)
    c.changed = true
  end
end

-- Charges units as used at a time that is past; none of them is ever left out.
local function charge(units, at)
  if units == 0 then return end
  local present = now
  now = min(at, present)
  advance()
  add(units, UNBOUNDED)
  for _, c in ipairs(limits) do c.value = algorithm.save(c, c.terms) end
  now = present
end

-- Splits the leases: those of others that last, and the holder's own, or nil. Units of a lease that has lapsed are charged as
-- if they had been used at the last moment.
local function lapse(leases)
  local others, own = {}, nil
  for _, l in ipairs(leases) do
    if l.ends <= now then
      charge(l.units, l.ends - 1)
    elseif l.holder == holder then
      own = l
    else
      others[#others + 1] = l
    end
  end
  return others, own
end

local function total(leases)
  local units = 0
  for _, l in ipairs(leases) do units = units + l.units end
  return units
end

-- Units that no limit has counted or leased.
local function room(leased)
  local least = MAX_COUNT
  for _, c in ipairs(limits) do least = min(least, algorithm.standing(c, c.terms) - leased) end
  return max(0, least)
end

-- Admits callers as far as there is room; returns the room that is left and the largest cost that was refused.
local function serve(left, reply)
  local refused = 0
  for _ = 1, take() do
    local cost, callers = take(), take()
    local admitted = min(callers, floor(left / max(1, cost)))
    if cost == 0 then admitted = left > 0 and callers or 0 end
    if admitted < callers then refused = max(refused, cost, 1) end
    if admitted * cost > 0 then add(admitted * cost) end
    left = left - admitted * cost
    reply[#reply + 1] = admitted
  end
  return left, refused
end

-- How a limit stands, all that is leased counted; reset and retry hold whenever that gets used.
local function stand(c, leased, ends, refused, reply)
  local t, present = c.terms, now
  local remaining, current, reset = algorithm.standing(c, t)
  local free, retry = max(0, remaining - leased), 0
  if free < refused then retry = algorithm.retry(c, t, refused + leased) end
  if leased > 0 then
    now = max(now, ends - 1)
    c.value = algorithm.save(c, t)
    algorithm.advance(c, t)
    algorithm.add(c, UNBOUNDED, leased)
    reset = select(3, algorithm.standing(c, t)) + now - present
    if retry < 0 then retry = algorithm.retry(c, t, refused) + now - present end
    now = present
  end
  local n = #reply
  reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4] = free, current + leased, reset, retry
  return reset
end

local leases, own = lapse(readleases())
if own then
  charge(min(used, own.units), lastuse)
  own.units = min(kept, max(0, own.units - used))
end
advance()
local reply = { now, own and 1 or 0, 0 }
own = own or { holder = holder, units = 0 }
local left, refused = serve(room(total(leases) + own.units), reply)
reply[3] = min(want, floor(left / 2))
if left == 0 then refused = max(refused, 1) end
own.units, own.ends = own.units + reply[3], now + life
if own.units > 0 then leases[#leases + 1] = own end

for _, c in ipairs(limits) do
  if c.changed then write(c.key, algorithm.save(c, c.terms)) end
end
local leased, ends, reset, list = total(leases), now, 0, { text(now) }
for _, l in ipairs(leases) do
  ends = max(ends, l.ends)
  list[#list + 1] = text(l.holder, l.units, l.ends)
end
for _, c in ipairs(limits) do reset = max(reset, stand(c, leased, ends, refused, reply)) end
if known or #leases > 0 then write(KEYS[1], table.concat(list, ' '), reset) end
for i = 1, #reply do reply[i] = text(reply[i]) end
return table.concat(reply, ' ')

-- Decides a request for each of the callers that ask the same, one after the other, in one step; or takes back what
-- one request was charged.
--
-- KEYS: one counter for each limit of each check, in order.
-- ARGV: number of callers, or 0 to take back; then for each check, packed:
--   algorithm letter, flags (1 shadow, 2 countRejected), cost, queue length, longest wait (µs), what is taken back
--   (LeakyBucket: the end of the backlog as it was left; else the time of the decision), number of limits,
--   then for each limit: requests, capacity, window (µs).
-- Returns, packed: the time (µs), then a row for each caller with, for each check: allowed (0|1), delay (µs), then for each
--   limit: fits (0|1), remaining, current, reset (µs), retry (µs + 1; 0 = never; 1 where allowed).
--   A row that charges nothing stands for all callers after it.

local checks, reply = {}, { struct.pack('>I7', now) }

local function readchecks()
  local used = 0
  for i = 2, #ARGV do
    local letter, flags, cost, queue, maxwait, back, n, at = struct.unpack('>c1I1I4I4I7I7I1', ARGV[i])
    local kind, limits = algorithm(letter), {}
    for j = 1, n do
      local requests, capacity, window
      requests, capacity, window, at = struct.unpack('>I4I4I6', ARGV[i], at)
      local t = { requests = requests, capacity = capacity, window = window, queue = queue, maxwait = maxwait }
      local key = KEYS[used + j]
      local c = { terms = t, key = key, value = redis.call('GET', key), fits = false, changed = false, edited = false }
      kind.advance(c, t)
      limits[j] = c
    end
    used = used + n
    checks[i - 1] = {
      algorithm = kind, limits = limits, cost = cost, asked = max(1, cost), back = back,
      shadow = flags % 2 == 1, rejected = flags > 1, allowed = true,
    }
  end
end

-- Whether the request may pass, as far as rules that are no shadows have it.
local function admit()
  local admitted = true
  for _, check in ipairs(checks) do
    check.allowed = true
    for _, c in ipairs(check.limits) do
      c.fits = check.algorithm.fits(c, c.terms, check.asked)
      check.allowed = check.allowed and c.fits
    end
    admitted = admitted and (check.allowed or check.shadow)
  end
  return admitted
end

local function charges(check, t, admitted)
  if check.cost == 0 then return false end
  if not check.allowed then return check.rejected and check.cost <= t.capacity end
  return admitted or check.shadow
end

-- Charges a check and appends how it stands to the reply; tells whether anything was charged.
local function settle(check, admitted)
  local kind, changed, head = check.algorithm, false, #reply + 1
  local allowed, delay = check.allowed, 0
  for i, c in ipairs(check.limits) do
    local t = c.terms
    if kind.delay and allowed and check.cost > 0 then delay = kind.delay(c, t) end
    if charges(check, t, admitted) then
      kind.add(c, t, check.cost)
      c.changed, changed = true, true
    end
    local remaining, current, reset = kind.standing(c, t)
    local retry = allowed and 0 or kind.retry(c, t, check.asked)
    reply[head + i] = struct.pack('>I1I6I6I7I7', c.fits and 1 or 0, remaining, current, reset, retry + 1)
  end
  reply[head] = struct.pack('>I1I7', allowed and 1 or 0, delay)
  return changed
end

local function decide()
  local admitted, changed = admit(), false
  for _, check in ipairs(checks) do changed = settle(check, admitted) or changed end
  return changed
end

local function takeback()
  for _, check in ipairs(checks) do
    for _, c in ipairs(check.limits) do
      c.edited = check.algorithm.takeback(c, c.terms, check.cost, check.back)
    end
  end
end

readchecks()
local callers = tonumber(ARGV[1])
if callers == 0 then takeback() end
for _ = 1, callers do
  if not decide() then break end
end
for _, check in ipairs(checks) do
  for _, c in ipairs(check.limits) do
    if c.changed or c.edited then write(c.key, check.algorithm.save(c, c.terms)) end
  end
end
return table.concat(reply)

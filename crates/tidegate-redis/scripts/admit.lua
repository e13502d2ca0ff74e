-- How many of the checks that ask fit: all of them, or none, or somewhere between.

local admitted, most, count = 0, asked, asked
while admitted < most do
  local fits = true
  --+fits
  if fits then admitted = count else most = count - 1 end
  if admitted == most then break end
  count = admitted + math.ceil((most - admitted) / 2)
end

"""Token stores: writing, reading and inspecting them."""

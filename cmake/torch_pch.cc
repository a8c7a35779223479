// Holds the precompiled torch header (torch_pch.h).

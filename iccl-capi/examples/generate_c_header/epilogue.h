#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* ICCL_H */
